"""Convolutions of cuDNN: the layout of their results, and what they allocate besides them.

The order of requests is that of ATen/native/Convolution.cpp and ATen/native/cudnn/ConvShared.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from gflow.ml.fit.cuda import convolution_copies, reduction
from gflow.ml.fit.cuda.architectures import Architecture
from gflow.ml.fit.cuda.convolution_copies import INPUT, RESULT, WEIGHT, Layer, size_of

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
    x, weight, stride, is_transposed, groups = args[0], args[1], args[3], args[6], args[8]
    layout = memory_format(x, weight)
    layer = Layer(x, weight, out, stride, groups, is_transposed=is_transposed, card=card)
    with sequence.scratch(_copy(x, layout)):
        sequence.result(out)
        with sequence.scratch(_copy(weight, layout), workspace(layer, layout, RESULT)):
            pass


def backward(args: Any, out: Any, sequence: Any, card: Architecture) -> None:
    """The gradient of the input, then of the weight, then of the bias."""
    grad, x, weight, stride, is_transposed, groups = (args[index] for index in (0, 1, 2, 4, 7, 9))
    wanted, layout = args[10], memory_format(x, weight)
    layer = Layer(x, weight, grad, stride, groups, is_transposed=is_transposed, card=card)
    with sequence.scratch(_copy(x, layout) if wanted[1] else 0, _copy(grad, layout)):
        for index, which, weights in ((0, INPUT, _copy(weight, layout)), (1, WEIGHT, 0)):
            if wanted[index]:
                sequence.result(out[index])
                with sequence.scratch(weights, workspace(layer, layout, which)):
                    pass
    if wanted[2]:
        sequence.result(out[2])
        size, dims = grad.element_size(), [dim for dim in range(grad.dim()) if dim != 1]
        buffers = reduction.scratch(grad.shape, grad.stride(), dims, size, max(4, size), card)
        with sequence.scratch(*buffers):
            pass


def workspace(layer: Layer, layout: torch.memory_format, which: str) -> int:
    is_first = layout == torch.contiguous_format
    return (convolution_copies.channels_first if is_first else convolution_copies.channels_last)(layer, which)


def _copy(tensor: Any, layout: torch.memory_format) -> int:
    """Return the bytes of the copy of a tensor in this layout; 0: it has the layout already."""
    return 0 if tensor.is_contiguous(memory_format=layout) else size_of(tensor)
