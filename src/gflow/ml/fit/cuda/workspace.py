"""Workspaces: memory that kernels allocate besides their results. One rule per operator, with its source.

`Workspaces.of` returns the sizes that an operator requests while it runs, for each of its kernels. A
workspace that a library keeps (cuBLAS) is requested once per thread and never released. Operators with
several results may request a workspace between them; `Workspaces.record_in_order` records theirs. The order
decides which free blocks are taken, and with it the reserved memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gflow.ml.fit.cuda import convolution, recurrent, reduction
from gflow.ml.fit.cuda.allocation_trace import AllocationTrace
from gflow.ml.fit.cuda.architectures import HOPPER, Architecture

aten = torch.ops.aten
MIB = 1 << 20


Rule = Callable[[Any, Any, Architecture], list[list[int]]]


class Workspaces:
    def __init__(self, trace: AllocationTrace, card: Architecture = HOPPER) -> None:
        self.trace = trace
        self.card = card
        # (name, is_backward) of the permanent workspaces; the backward pass runs in its own thread.
        self._kept: set[tuple[str, bool]] = set()

    def of(self, func: Any, args: Any, out: Any) -> list[list[int]]:
        if func in MATRIX_PRODUCTS:
            self._keep("blas", self.card.blas, func)
            if func is aten.addmm.default and _is_lt(args):
                self._keep("blas_lt", self.card.blas_lt, func)
            return []
        rule = RULES.get(func)
        if rule is None:
            return []
        if func in DOUBTFUL:
            self.trace.doubts.add(DOUBTFUL[func])
            self.trace.reserved_doubts.add(CUDNN)
        return rule(args, out, self.card)

    def record_in_order(self, func: Any, args: Any, out: Any, track: Callable[..., Any]) -> None:
        """Record results and workspaces of an operator in the order in which they are allocated."""
        rule = ORDERED.get(func)
        if rule is None:
            return
        if func in DOUBTFUL:
            self.trace.doubts.add(DOUBTFUL[func])
            self.trace.reserved_doubts.add(CUDNN)
        if func is aten._cudnn_rnn.default and args[11] and args[12]:
            self._keep("dropout", recurrent.DROPOUT_STATE, func)
        rule(args, out, Sequence(self.trace, func, track), self.card)

    def _keep(self, what: str, size: int, func: Any) -> None:
        key = (what, self.trace.phase == "backward")
        if key not in self._kept:
            self._kept.add(key)
            self.trace.request(size, str(func), "workspace")


class Sequence:
    """Records what one operator allocates, step by step."""

    def __init__(self, trace: AllocationTrace, func: Any, track: Callable[..., Any]) -> None:
        self._trace, self._func, self._track = trace, func, track

    def result(self, *tensors: Any) -> None:
        for tensor in tensors:
            if tensor is not None:
                self._track(tensor, self._func)

    @contextmanager
    def scratch(self, *sizes: int) -> Iterator[None]:
        """Hold blocks of these sizes in a context; 0: none. The last one is released first, as in C++."""
        numbers = [self._trace.request(size, str(self._func), "workspace") for size in sizes if size]
        yield
        for number in reversed(numbers):
            self._trace.release(number)


MATRIX_PRODUCTS = {
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.addmv.default,
    aten._addmm_activation.default,
}


def _is_lt(args: Any) -> bool:
    """Whether a product with a bias goes to cuBLASLt (ATen/native/cuda/Blas.cpp: the bias is one row)."""
    bias, _, weight = args[:3]
    return bool(bias.dim() == 1 and bias.shape[0] == weight.shape[1] and min(weight.shape) > 1)


def _reduce(args: Any, out: Any, card: Architecture) -> list[list[int]]:
    tensor = args[0]
    dims = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    size = tensor.element_size()
    return [reduction.scratch(tensor.shape, tensor.stride(), dims, size, max(4, size), card)]


def _vector_norm(args: Any, out: Any, card: Architecture) -> list[list[int]]:
    dims = args[2] if len(args) > 2 and args[2] is not None else ()
    return _reduce((args[0], list(dims)), out, card)


def _contiguous_inputs(count: int) -> Rule:
    """Kernels that copy their first `count` arguments to contiguous memory (ATen/native/cuda/SoftMax.cu)."""

    def rule(args: Any, out: Any, card: Architecture) -> list[list[int]]:
        return [[_bytes(one) for one in args[:count] if not one.is_contiguous()]]

    return rule


def _embedding_backward(args: Any, out: Any, sequence: Sequence, card: Architecture) -> None:
    """ATen/native/cuda/Embedding.cu: indices are sorted, and rows of each index summed in parts of ten."""
    grad, indices, words = args[:3]
    with sequence.scratch(0 if grad.is_contiguous() else _bytes(grad)):
        sequence.result(out)
        count = indices.numel()
        if count <= 3072:
            return
        width = -(-grad.shape[-1] // 32) * 32
        parts = count // 10 + min(count, words)
        with sequence.scratch(8 * count, 8 * count, parts * width * max(4, grad.element_size())):
            pass


def _efficient_backward(args: Any, out: Any, card: Architecture) -> list[list[int]]:
    """CUTLASS fused attention: query gradients accumulate in blocks of 64 rows, each with a lock."""
    query = args[1]
    batch, heads, length, width = query.shape
    per_head = -(-length // 64) * -(-width // 64) * (16 + 64 * 64 * 4)
    delta = 4 * batch * heads * length
    return [[delta, batch * heads * per_head]]


def _dropout(args: Any, out: Any, sequence: Sequence, card: Architecture) -> None:
    """ATen/native/cuda/Dropout.cu: the mask, and then the result."""
    sequence.result(out[1], out[0])


def _recurrent(args: Any, out: Any, sequence: Sequence, card: Architecture) -> None:
    """ATen/native/cudnn/RNN.cpp, `_cudnn_rnn`: results, workspace, and what is kept for the backward pass."""
    x, state, is_batch_first = args[0], args[4], args[10]
    with sequence.scratch(recurrent.time_first(x, is_batch_first)):
        sequence.result(*out[:3])
        with sequence.scratch(recurrent.workspace(recurrent.shape_of(x, state, args[6:14]))):
            sequence.result(out[3])


def _recurrent_backward(args: Any, out: Any, sequence: Sequence, card: Architecture) -> None:
    """The same file, `_cudnn_rnn_backward`: the input, then all weights in one block."""
    x, state, cell, out_before = args[0], args[4], args[5], args[6]
    first, workspace = args[14], recurrent.workspace(recurrent.shape_of(x, state, args[10:18]))
    given = zip((out_before, state, cell), args[7:10], strict=True)
    # Gradients that were not given are filled with zeros.
    with sequence.scratch(*(_bytes(one) for one, its in given if one is not None and its is None)):
        grad = out_before.contiguous() if args[7] is None else args[7]
        with sequence.scratch(recurrent.time_first(x, first), recurrent.time_first(grad, first)):
            sequence.result(*out[:3])
            with sequence.scratch(workspace):
                pass
        with sequence.scratch(recurrent.time_first(x, first)):
            sequence.result(*out[3][:1])
            with sequence.scratch(workspace):
                pass


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


# Rules for choices of a library that may differ in other versions or shapes.
CUDNN = "cuDNN's workspaces decide the reserved memory: up to 15 % off when measured"
CONVOLUTIONS = "cuDNN chooses the algorithms of convolutions, and with them their workspace"
RECURRENT = "what cuDNN keeps for recurrent layers was measured with one version on one GPU"
DOUBTFUL = {
    aten.convolution.default: CONVOLUTIONS,
    aten.convolution_backward.default: CONVOLUTIONS,
    aten._cudnn_rnn.default: RECURRENT,
    aten._cudnn_rnn_backward.default: RECURRENT,
}
RULES: dict[Any, Rule] = {
    aten.sum.dim_IntList: _reduce,
    aten.sum.default: _reduce,
    aten.mean.dim: _reduce,
    aten.mean.default: _reduce,
    aten.linalg_vector_norm.default: _vector_norm,
    aten._softmax.default: _contiguous_inputs(1),
    aten._log_softmax.default: _contiguous_inputs(1),
    aten._softmax_backward_data.default: _contiguous_inputs(2),
    aten._log_softmax_backward_data.default: _contiguous_inputs(2),
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
ORDERED: dict[Any, Callable[[Any, Any, Sequence, Architecture], None]] = {
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.convolution.default: convolution.forward,
    aten.convolution_backward.default: convolution.backward,
    aten.native_dropout.default: _dropout,
    aten._cudnn_rnn.default: _recurrent,
    aten._cudnn_rnn_backward.default: _recurrent_backward,
}
