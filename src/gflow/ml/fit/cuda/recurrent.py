"""cuDNN's recurrent layers (LSTM, GRU, plain RNN): memory kept for the backward pass, and workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
# Values that cuDNN keeps per unit of a layer and direction: gates and states (LSTM: four gates and the cell;
# GRU: three gates and the input of each). See `kept_bytes`.
KEPT = {0: 1, 1: 1, 2: 5, 3: 6}
# Bytes that cuDNN keeps besides.
HEADER = 256
# Matrices of a layer, from its input and from its state.
GATES = {0: 1, 1: 1, 2: 4, 3: 3}
# Sequences that are longer have another algorithm, with less memory for each step. Measured: 256 and 320.
LONG = 256
# Bytes of the dropout generator's state: 48 for each of the threads that run it on a Hopper.
DROPOUT_STATE = 6488064


class Shape(NamedTuple):
    """The sizes of a recurrent layer and its input. `projected`: 0 without a projection."""

    kind: int
    sequences: int
    length: int
    width: int
    hidden: int
    projected: int
    layers: int
    ways: int
    has_dropout: bool
    number_bytes: int

    @property
    def steps(self) -> int:
        return self.sequences * self.length

    @property
    def out(self) -> int:
        return self.projected or self.hidden


def shape_of(x: Any, state: Any, settings: Sequence[Any]) -> Shape:
    """Return the sizes of an operator. `settings`: its arguments from `mode` to `bidirectional`."""
    kind, hidden, projected, layers, is_batch_first, dropout, _, both = settings
    sequences, length = x.shape[:2] if is_batch_first else (x.shape[1], x.shape[0])
    return Shape(
        kind, sequences, length, x.shape[2], hidden, projected, layers, 2 if both else 1, bool(dropout),
        state.element_size(),
    )  # fmt: skip


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
    x, state, cell, is_batch_first, train = args[0], args[4], args[5], args[10], args[12]
    shape = shape_of(x, state, args[6:14])
    out = x.new_empty((shape.length, shape.sequences, shape.ways * shape.out))
    if is_batch_first:
        out = out.transpose(0, 1)
    last = state.new_empty(state.shape)
    last_cell = cell.new_empty(cell.shape) if cell is not None else x.new_empty((0,))
    kept = kept_bytes(shape) if train else 0
    return out, last, last_cell, x.new_empty((kept,), dtype=torch.uint8), x.new_empty((0,))


def kept_bytes(shape: Shape) -> int:
    """Return what cuDNN keeps for the backward pass.

    Each layer keeps its values; with a projection what is projected, and the result. Between layers lie one
    more value for each unit and, with dropout, a bit for each input of each direction.
    """
    hidden, projected, between = shape.hidden, shape.projected, shape.layers - 1
    steps = shape.steps * shape.ways
    layer = hidden * KEPT[shape.kind] + (hidden + projected if projected else 0)
    mask = shape.ways * shape.out if shape.has_dropout else 0
    values = steps * (layer * shape.layers + hidden * between) * shape.number_bytes
    return values + steps * mask * between // 8 + HEADER


def backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, weights, _, _, state, cell = args[:6]
    grads = _views(x.new_empty((_numbers(weights),)), weights)
    cells = cell.new_empty(cell.shape) if cell is not None else x.new_empty((0,))
    return x.new_empty(x.shape), state.new_empty(state.shape), cells, grads


def workspace(shape: Shape) -> int:
    """Return cuDNN's workspace of one pass in bytes.

    All weights, values of each step and each state, and 8 MiB for each layer and direction. cuDNN's source is
    not public: this is what 230 of the 237 layers of benchmarks/fit_layers_measured.jsonl need.
    """
    kind, width, hidden, ways = shape.kind, shape.width, shape.hidden, shape.ways
    is_lstm, is_gru, is_deep = kind == MODES["lstm"], kind == MODES["gru"], shape.layers > 1
    states = 8 * hidden + 2 * shape.out if is_lstm else 5 * hidden if is_gru else 13 * hidden
    more = 0
    if not is_lstm and not is_gru:
        values = 4 * width if width > hidden else 3 * hidden + 2 * width
        more = 8 * hidden if shape.length >= 128 else 0
        if ways == 2:
            values, states, more = (12 if is_deep else 10) * hidden + 2 * width, 7 * hidden, 0
    elif ways == 2:
        values = (2 * GATES[kind] + 6) * hidden + width + 2 * shape.projected
        values += width if is_gru and is_deep else 0
        more = 4 * hidden * shape.layers
    elif is_lstm and shape.number_bytes == 2 and hidden <= 1024 and not is_deep and not shape.projected:
        values, more = 21 * hidden + width, -2 * hidden
    elif shape.length > LONG or width > hidden:
        values, more = 4 * max(width, hidden), (26 if is_lstm else 24) * hidden
    else:
        values = (GATES[kind] + 1) * hidden + width + shape.projected
        values += width if is_gru and not is_deep else 0
        more = 24 * hidden if is_gru and width == hidden else 0
    if shape.has_dropout and ways == 1 and (is_lstm or is_gru):
        values += hidden
    states = states * shape.layers * ways + more
    numbers = _matrices(shape) + shape.steps * values + shape.sequences * states
    return numbers * shape.number_bytes + shape.layers * ways * (8 << 20) + 3 * HEADER


def _matrices(shape: Shape) -> int:
    """Return how many numbers the matrices of all layers have."""
    gates, out, found, width = GATES[shape.kind], shape.out, 0, shape.width
    for _ in range(shape.layers):
        found += gates * shape.hidden * (width + out) + shape.projected * shape.hidden
        width = out * shape.ways
    return found * shape.ways


def time_first(tensor: Any, is_batch_first: bool) -> int:
    """Return the bytes of the copy that has time as its first dimension; 0: the tensor has it already."""
    if is_batch_first:
        tensor = tensor.transpose(0, 1)
    return 0 if tensor.is_contiguous() else int(tensor.numel() * tensor.element_size())
