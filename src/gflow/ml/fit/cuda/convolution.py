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
# At most so many channels of an image: red, green, blue, alpha.
THIN = 4
# As measured: products with a longer sum than this are divided, if there are fewer tiles of results of this
# width than half of the multiprocessors.
LONG, TILE = 8192, 64
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
        with sequence.scratch(_copy(weight, layout), *_conversion(x, weight, out, stride, groups, 0, card)):
            pass


def backward(args: Any, out: Any, sequence: Any, card: Architecture) -> None:
    """The gradient of the input, then of the weight (split into parts of about 8 MiB), then of the bias."""
    grad, x, weight, stride, groups, wanted = args[0], args[1], args[2], args[4], args[9], args[10]
    layout = memory_format(x, weight)
    parts = min(15, -(-8 * MIB // _bytes(weight)))
    with sequence.scratch(_copy(x, layout) if wanted[1] else 0, _copy(grad, layout)):
        for index, split, weights in ((0, 0, _copy(weight, layout)), (1, parts, 0)):
            if wanted[index]:
                sequence.result(out[index])
                with sequence.scratch(weights, *_conversion(x, weight, grad, stride, groups, split, card)):
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


def _conversion(
    x: Any, weight: Any, y: Any, stride: Any, groups: int, parts: int, card: Architecture
) -> list[int]:
    """cuDNN's fast kernels need channels-last layout: other inputs, outputs and weights are copied.

    `parts`: copies of the weight's gradient, which are summed at the end; 0: another result is computed.
    Convolutions in one dimension are computed in two (ATen/native/Convolution.cpp, `view1d_as_2d`).
    Convolutions of single channels have kernels of their own for any layout.
    """
    is_depthwise = groups > 1 and weight.shape[1] == 1
    if is_depthwise or x.dim() not in (3, 4):
        return []
    if memory_format(x, weight) != torch.contiguous_format:
        return _padded(x, weight, parts)
    if max(weight.shape[2:]) == 1 and groups == 1:
        return _pointwise(x, weight, y, stride, parts, card)
    if x.shape[1] <= THIN:
        return _few_channels(x, weight, y, parts)
    return [_bytes(x) + _bytes(y) + max(1, parts) * _bytes(weight)]


def _pointwise(x: Any, weight: Any, y: Any, stride: Any, parts: int, card: Architecture) -> list[int]:
    """Pointwise convolutions are matrix products, one for each image. The gradient of the weight is computed
    for each image in fp32, and summed. Images are copied instead if their rows are not multiples of 16 bytes;
    for the gradient in fp32 also if that needs less, or if they are long and so few that their products do
    not fill half of the GPU.
    """
    pixels, is_wide = prod(x.shape[2:]), x.element_size() == 4
    copies = _bytes(x) + _bytes(y) + parts * _bytes(weight)
    if (pixels * x.element_size()) % 16 or max(stride) > 1:
        return [copies]
    products = x.shape[0] * weight.numel() * 4
    tiles = x.shape[0] * prod(-(-size // TILE) for size in weight.shape[:2])
    is_copied = is_wide and (copies < products or (pixels >= LONG and 2 * tiles <= card.processors))
    return [copies if is_copied else products] if parts else []


def _padded(x: Any, weight: Any, parts: int) -> list[int]:
    """With channels last the input of a first layer of large filters is copied to rows of 16 bytes."""
    channels = 16 // x.element_size()
    if x.element_size() > 2 or x.shape[1] > THIN or max(weight.shape[2:]) <= 3:
        return []
    return [(_bytes(x) + max(1, parts) * _bytes(weight)) * channels // int(x.shape[1])]


def _few_channels(x: Any, weight: Any, y: Any, parts: int) -> list[int]:
    """The first layer of a model for images, as measured. Small filters need no copies, except for the
    gradient of 16-bit weights. Where the input is copied it has the channels of a row of 16 bytes, but not
    in the forward pass in fp32.
    """
    is_small, is_wide = max(weight.shape[2:]) <= 3, x.element_size() == 4
    if is_small and (is_wide or not parts):
        return []
    padded = 1 if is_wide and not parts else 16 / x.element_size() / x.shape[1]
    return [_bytes(y) + int(padded * (_bytes(x) + max(1, parts) * _bytes(weight)))]


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
