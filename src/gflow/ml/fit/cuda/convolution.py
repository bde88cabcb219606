"""Convolutions of cuDNN: the layout of their results, and what they allocate besides them.

The order of requests is that of ATen/native/Convolution.cpp and ATen/native/cudnn/ConvShared.cpp.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from gflow.ml.fit.cuda import reduction
from gflow.ml.fit.cuda.architectures import Architecture

MIB = 1 << 20
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(x: Any, weight: Any, _: Any = None) -> torch.memory_format:
    """Return the layout that cuDNN computes in: channels last if the input or the weights have it.

    ATen/native/ConvUtils.h, `cudnn_conv_suggest_memory_format`.
    """
    last = CHANNELS_LAST.get(weight.dim())
    if last is None or torch.float64 in (x.dtype, weight.dtype):
        return torch.contiguous_format
    return (
        last if last in (suggest_memory_format(x), suggest_memory_format(weight)) else torch.contiguous_format
    )


def forward(args: Any, out: Any, sequence: Any, card: Architecture) -> None:
    x, weight, stride, groups = args[0], args[1], args[3], args[8]
    layout = memory_format(x, weight)
    with sequence.scratch(_copy(x, layout)):
        sequence.result(out)
        with sequence.scratch(_copy(weight, layout), *_conversion(x, weight, out, stride, groups, 1)):
            pass


def backward(args: Any, out: Any, sequence: Any, card: Architecture) -> None:
    """The gradient of the input, then of the weight (split into parts of about 8 MiB), then of the bias."""
    grad, x, weight, stride, groups, wanted = args[0], args[1], args[2], args[4], args[9], args[10]
    layout = memory_format(x, weight)
    parts = min(15, -(-8 * MIB // _bytes(weight)))
    with sequence.scratch(_copy(x, layout) if wanted[1] else 0, _copy(grad, layout)):
        for index, split, weights in ((0, 1, _copy(weight, layout)), (1, parts, 0)):
            if wanted[index]:
                sequence.result(out[index])
                with sequence.scratch(weights, *_conversion(x, weight, grad, stride, groups, split)):
                    pass
    if wanted[2]:
        sequence.result(out[2])
        size, dims = grad.element_size(), [dim for dim in range(grad.dim()) if dim != 1]
        buffers = reduction.scratch(grad.shape, grad.stride(), dims, size, max(4, size), card)
        with sequence.scratch(*buffers):
            pass


def _copy(tensor: Any, layout: torch.memory_format) -> int:
    """Return the bytes of the copy of a tensor in this layout; 0: it has the layout already."""
    return 0 if tensor.is_contiguous(memory_format=layout) else _bytes(tensor)


def _conversion(x: Any, weight: Any, y: Any, stride: Any, groups: int, parts: int) -> list[int]:
    """cuDNN's fast kernels need channels-last layout: other inputs, outputs and weights are copied.

    Pointwise convolutions are matrix products, and are copied only if rows are not multiples of 16 bytes.
    Convolutions in one dimension are computed in two (ATen/native/Convolution.cpp, `view1d_as_2d`).
    """
    if groups != 1 or x.dim() not in (3, 4) or not (x.is_contiguous() and weight.is_contiguous()):
        return []
    copies = _bytes(x) + _bytes(y)
    if max(weight.shape[2:]) > 1:
        return [copies + parts * _bytes(weight)]
    is_whole = (prod(x.shape[2:]) * x.element_size()) % 16 == 0
    return [] if is_whole and max(stride) == 1 else [copies]


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
