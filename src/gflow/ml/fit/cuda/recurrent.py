"""cuDNN's recurrent layers (LSTM, GRU, plain RNN): memory kept for the backward pass, and workspaces."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

aten = torch.ops.aten
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
# Values that cuDNN keeps per unit of a layer and direction: gates and states (LSTM: four gates and the cell;
# GRU: three gates and the input of each). See `kept_bytes`.
KEPT = {0: 1, 1: 1, 2: 5, 3: 6}
# Bytes that cuDNN keeps besides.
HEADER = 256
# Gates per output. The workspace holds twice the gates of one layer, an output, and a state per layer.
GATES = {0: 1, 1: 1, 2: 4, 3: 6}
# Bytes of the dropout generator's state: 48 for each of the threads that run it on a Hopper.
DROPOUT_STATE = 6488064


def layer(kind: str) -> Any:
    """Return the CUDA implementation of a recurrent layer's composite operator."""

    def run(
        x: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        state, cell = (hx[0], hx[1]) if kind == "lstm" else (hx, None)
        # With a projection (`proj_size`) the state is narrower than the cell.
        hidden = (state if cell is None else cell).shape[-1]
        projected = state.shape[-1] if state.shape[-1] != hidden else 0
        weights = (4 if has_biases else 2) + (1 if projected else 0)
        if torch.is_autocast_enabled("cuda"):
            # cuDNN's layers compute in fp16 under autocast, also if the other operators do in bf16.
            params = Flatten.apply(torch.float16, *params)
            cell = None if cell is None else cell.half()
            state, x = state.half(), x.half()
        # CUDA builds have an autocast kernel, which would convert what has been converted here.
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            out, hy, cy, _, _ = aten._cudnn_rnn.default(
                x, params, weights, None, state, cell, MODES[kind], hidden, projected,
                num_layers, batch_first, dropout, train, bidirectional, [], None,
            )  # fmt: skip
        return (out, hy, cy) if kind == "lstm" else (out, hy)

    return run


class Flatten(torch.autograd.Function):  # type: ignore[misc]
    """The 16-bit copy of all weights under autocast: one block (ATen/cudnn/AutocastRNN.cpp)."""

    @staticmethod
    def forward(ctx: Any, narrow: torch.dtype, *weights: Any) -> Any:
        ctx.wide = [weight.dtype for weight in weights]
        return tuple(_views(torch.empty(_numbers(weights), dtype=narrow, device=weights[0].device), weights))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *(one.to(wide) for one, wide in zip(gradients, ctx.wide, strict=True))


def _numbers(weights: Any) -> int:
    return sum(prod(weight.shape) for weight in weights)


def _views(flat: Any, weights: Any) -> list[Any]:
    """Return one view into the block for each weight."""
    found, at = [], 0
    for weight in weights:
        found.append(flat[at : at + weight.numel()].view(weight.shape))
        at += weight.numel()
    return found


def forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, _, _, _, state, cell, kind, hidden, projected, layers, first, dropout, train, both, *_ = args
    batch, length = (x.shape[0], x.shape[1]) if first else (x.shape[1], x.shape[0])
    ways = 2 if both else 1
    out = x.new_empty((length, batch, ways * (projected or hidden)))
    if first:
        out = out.transpose(0, 1)
    last = state.new_empty(state.shape)
    last_cell = cell.new_empty(cell.shape) if cell is not None else x.new_empty((0,))
    kept = 0
    if train:
        steps = batch * length * ways
        kept = kept_bytes(kind, steps, hidden, projected, layers, ways, bool(dropout), x.element_size())
    return out, last, last_cell, x.new_empty((kept,), dtype=torch.uint8), x.new_empty((0,))


def kept_bytes(
    kind: int,
    steps: int,
    hidden: int,
    projected: int,
    layers: int,
    ways: int,
    has_dropout: bool,
    number_bytes: int,
) -> int:
    """Return what cuDNN keeps for the backward pass. `steps`: sequences times their length times directions.

    Each layer keeps its values; with a projection what is projected, and the result. Between layers lie one
    more value for each unit and, with dropout, a bit for each input of each direction.
    """
    layer = hidden * KEPT[kind] + (hidden + projected if projected else 0)
    mask = ways * (projected or hidden) if has_dropout else 0
    values = steps * (layer * layers + hidden * (layers - 1)) * number_bytes
    return values + steps * mask * (layers - 1) // 8 + HEADER


def backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, weights, _, _, state, cell = args[:6]
    grads = _views(x.new_empty((_numbers(weights),)), weights)
    cells = cell.new_empty(cell.shape) if cell is not None else x.new_empty((0,))
    return x.new_empty(x.shape), state.new_empty(state.shape), cells, grads


def workspace(x: Any, state: Any, kind: int, hidden: int, both: bool) -> int:
    """Return cuDNN's workspace of one pass in bytes. As measured: cuDNN's source is not public."""
    values = x.shape[0] * x.shape[1] * hidden * (2 if both else 1)
    states = state.numel() * x.element_size() * (2 if kind == MODES["lstm"] else 1)
    another_byte = x.element_size() == 2 or kind == MODES["gru"]
    return int(values * (x.element_size() * (2 * GATES[kind] + 1) + another_byte) + states)


def time_first(tensor: Any, is_batch_first: bool) -> int:
    """Return the bytes of the copy that has time as its first dimension; 0: the tensor has it already."""
    if is_batch_first:
        tensor = tensor.transpose(0, 1)
    return 0 if tensor.is_contiguous() else int(tensor.numel() * tensor.element_size())
