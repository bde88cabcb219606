"""What cuDNN allocates for a convolution: mostly copies of its tensors, in the layout of the fast kernels.

The kernels for tensor cores need channels last, and rows of 16 bytes. Tensors with another layout are
converted in a workspace, channels are padded, and a gradient of weights that is computed in parts has a copy
for each part. cuDNN chooses kernels by shape; the rules are those that describe 3,708 convolutions that were
measured on an H200 (cuDNN 9.19). `tests/fit/test_convolutions.py` says how far they are off.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from gflow.ml.fit.cuda.architectures import Architecture

MIB = 1 << 20
# What is computed: the result, the gradient of the input, or that of the weights.
RESULT, INPUT, WEIGHT = "result", "input", "weight"
# At most so many channels of an image: red, green, blue, alpha.
THIN = 4
# Bytes of a row that tensor cores read at once.
ROW = 16
# Products with a longer sum than LONG are divided, if there are fewer tiles of results of this width than
# half of the multiprocessors, or than FEW in 16 bit.
LONG, TILE, FEW = 8192, 64, 5
# Pixels of a batch from which pointwise convolutions with a stride write their result without a copy.
MANY, VERY_MANY = 10_000, 140_000


class Layer:
    """A convolution of `x` to `y`, and the sizes that decide which kernel cuDNN takes."""

    def __init__(
        self,
        x: Any,
        weight: Any,
        y: Any,
        stride: Any,
        groups: int,
        *,
        is_transposed: bool,
        card: Architecture,
    ) -> None:
        self.shape: tuple[int, ...] = tuple(x.shape)
        self.filters: tuple[int, ...] = tuple(weight.shape)
        self.groups, self.is_transposed, self.card = groups, is_transposed, card
        self.item, self.ins, self.outs = int(x.element_size()), int(x.shape[1]), int(y.shape[1])
        self.width, self.stride = max(self.filters[2:]), int(max(stride))
        self.x, self.weight, self.y = (size_of(one) for one in (x, weight, y))
        self.pixels = int(y.shape[0] * prod(y.shape[2:]))
        ins, outs = (1.0, 1.0) if groups > 1 else (self._padding(self.ins), self._padding(self.outs))
        self.padded_x, self.padded_y = int(self.x * ins), int(self.y * outs)
        self.padded_weight = int(self.weight * ins * outs)

    def _padding(self, channels: int) -> float:
        step = max(1, ROW // self.item)
        return -(-channels // step) * step / channels

    @property
    def is_fp32(self) -> bool:
        return self.item == 4

    @property
    def is_volume(self) -> bool:
        return len(self.shape) == 5

    @property
    def uses_tensor_cores(self) -> bool:
        return self.item == 2 or (self.is_fp32 and bool(torch.backends.cudnn.allow_tf32))

    def parts(self, which: str) -> int:
        """Copies of the weight's gradient that are summed at the end; 0: another result is computed."""
        most = 4 * MIB if self.is_volume else 8 * MIB
        return min(15, -(-most // self.weight)) if which == WEIGHT else 0


def size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def channels_first(layer: Layer, which: str) -> int:
    """Return the bytes of the workspace of a convolution whose channels come first.

    Convolutions in one dimension are computed in two (ATen/native/Convolution.cpp, `view1d_as_2d`).
    Convolutions of single channels have kernels of their own for any layout.
    """
    if layer.groups > 1 and layer.filters[1] == 1:
        return 0
    if not layer.uses_tensor_cores:
        is_copied = layer.is_volume and which == WEIGHT and layer.width > 1 and layer.ins > THIN
        return layer.x + layer.y + layer.weight if is_copied and layer.is_fp32 else 0
    if layer.width == 1 and layer.groups == 1:
        return _pointwise(layer, which) if layer.stride == 1 else _strided(layer, which)
    if layer.ins <= THIN and not layer.is_transposed:
        return _first_of_volume(layer, which) if layer.is_volume else _first(layer, which)
    return _general(layer, which)


def channels_last(layer: Layer, which: str) -> int:
    """With channels last the input of a first layer of large filters is copied to padded rows."""
    if layer.item != 2 or layer.ins > THIN or layer.width <= 3 or layer.is_volume:
        return 0
    padding = ROW // layer.item
    return (layer.x + max(1, layer.parts(which)) * layer.weight) * padding // layer.ins


def _general(layer: Layer, which: str) -> int:
    """In fp32 some kernels write channels first, and some narrow layers have kernels without copies."""
    if layer.is_fp32 and layer.groups == 1 and not layer.is_transposed:
        if which == RESULT and layer.is_volume and layer.outs == TILE and layer.ins >= TILE // 2:
            return layer.padded_x + layer.padded_weight
        if which == RESULT and len(layer.shape) == 4 and layer.stride > 1 and layer.ins <= TILE // 2:
            return 0
        if which == INPUT and layer.is_volume and layer.outs <= THIN:
            return 0
    return layer.padded_x + layer.padded_y + max(1, layer.parts(which)) * layer.padded_weight


def _pointwise(layer: Layer, which: str) -> int:
    """Pointwise convolutions are matrix products, one for each image. The gradient of the weight is computed
    for each image in fp32, and summed. Images are copied instead if that needs less, or if they are long
    and so few that their products do not fill the GPU.
    """
    length = prod(layer.shape[2:])
    is_aligned = (length * layer.item) % ROW == 0
    copies = layer.x + layer.y + layer.parts(which) * layer.weight
    if which != WEIGHT:
        return copies if not is_aligned and layer.ins >= 1024 else 0
    products = layer.shape[0] * prod(layer.filters) * 4
    if not is_aligned:
        return min(copies, products)
    tiles = layer.shape[0] * prod(-(-size // TILE) for size in layer.filters[:2])
    is_few = 2 * tiles <= layer.card.processors if layer.is_fp32 else tiles <= FEW
    return copies if copies < products or (length >= LONG and is_few) else products


def _strided(layer: Layer, which: str) -> int:
    """Pointwise with a stride: in fp32 narrow layers have kernels without copies, and wide results of many
    pixels are written with channels first.
    """
    copies = layer.x + layer.y
    if not layer.is_fp32:
        return copies + layer.parts(which) * layer.weight
    if which == WEIGHT:
        is_plain = layer.ins < 64 or (layer.ins <= 80 and layer.pixels > VERY_MANY)
        return 0 if is_plain else copies + layer.parts(which) * layer.weight
    if which == INPUT:
        return 0 if layer.ins <= 128 else copies
    if layer.ins <= 64 or (layer.outs <= 128 < layer.ins and layer.pixels > MANY // 3):
        return 0
    if layer.ins < 512 and layer.outs >= 448 and layer.pixels > MANY:
        return layer.x + layer.weight
    return copies


def _first_of_volume(layer: Layer, which: str) -> int:
    """In fp32 the thin input of a volume is not padded."""
    if which == RESULT:
        return 0 if layer.ins < THIN else layer.padded_x + layer.y + layer.weight
    x = layer.x if layer.is_fp32 else layer.padded_x
    return x + layer.y + layer.parts(which) * layer.weight


def _first(layer: Layer, which: str) -> int:
    """The first layer of a model for images. Small filters and, with few results, patches need no copies."""
    parts = max(1, layer.parts(which))
    padded = layer.padded_x + layer.y + parts * layer.padded_weight
    if layer.is_fp32:
        return _first_in_fp32(layer, which)
    if which == RESULT:
        is_patch = layer.stride >= layer.width and layer.outs <= 192 and layer.width < 32
        return 0 if layer.width <= 4 or is_patch else padded
    return layer.y + (layer.x + parts * layer.weight) * ROW // layer.item // layer.ins


def _first_in_fp32(layer: Layer, which: str) -> int:
    outs, width, is_thin = layer.outs, layer.width, layer.ins < THIN
    if which == WEIGHT:
        is_plain = width <= (3 if outs <= 192 else 2) or (width, outs <= 192) == (4, True)
        if is_thin and (is_plain or (width == 5 and outs < 96)):
            return 0
        parts = layer.parts(which)
        return layer.y + (layer.x + parts * layer.weight) * ROW // layer.item // layer.ins
    if not is_thin:
        return layer.x + layer.y + layer.weight if width >= 4 else 0
    if width != 7 or outs <= 32:
        return 0
    return layer.x + layer.weight + (0 if outs >= 192 else layer.y)
