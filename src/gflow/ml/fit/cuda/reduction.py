"""Workspace of CUDA's reductions (sums, means, norms; above all the gradients of biases).

A sum with a small result is split over many thread blocks, which write partial results to global memory.
ATen/native/cuda/Reduce.cuh chooses their number from the shape and the number of multiprocessors. This module
reproduces that choice step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gflow.ml.fit.cuda.architectures import Architecture

WARP = 32
MOST_THREADS = 512
LEAST_VALUES = 16
MOST_VALUES = 256
# Reductions use 32-bit indices; larger tensors are halved until they fit.
INDEXABLE = 1 << 31


def scratch(
    shape: Sequence[int],
    strides: Sequence[int],
    reduced: Sequence[int],
    item: int,
    accumulated: int,
    card: Architecture,
) -> list[int]:
    """Return the bytes of each buffer for a reduction over the dimensions `reduced` (empty: all).

    `item` is the size of an element, `accumulated` that of a partial result.
    """
    over = {dim % len(shape) for dim in reduced} if reduced and shape else set(range(len(shape)))
    shape = list(shape)
    while prod(shape) * item > INDEXABLE:
        largest = max(range(len(shape)), key=shape.__getitem__)
        shape[largest] = -(-shape[largest] // 2)
    summed = _coalesce([(shape[dim], strides[dim]) for dim in sorted(over)])
    kept = _coalesce([(shape[dim], strides[dim]) for dim in range(len(shape)) if dim not in over])
    inputs = prod(size for size, _ in summed)
    outputs = prod(size for size, _ in kept)
    if inputs * outputs == 0 or not summed:
        return []
    return _Launch(summed, kept, inputs, outputs, card).buffers(accumulated)


def _coalesce(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort the dimensions from the fastest to the slowest, and merge those that are contiguous."""
    joined: list[tuple[int, int]] = []
    for size, stride in sorted((d for d in dims if d[0] != 1), key=lambda d: d[1]):
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


class _Launch:
    """The launch configuration of the kernel."""

    def __init__(
        self,
        summed: list[tuple[int, int]],
        kept: list[tuple[int, int]],
        inputs: int,
        outputs: int,
        card: Architecture,
    ) -> None:
        self.outputs = outputs
        self.per_thread_outputs = 1
        self.step_input = self.step_output = 1
        along = not kept or summed[0][1] < kept[0][1]
        across, down = (inputs, outputs) if along else (outputs, inputs)
        if (summed[0] if along else kept[0])[1] == 1:
            if along and across > 128 and len(summed) + len(kept) == 1:
                across //= 4
            elif not along:
                self.per_thread_outputs = _vector(summed, kept)
                across //= self.per_thread_outputs
        most = MOST_THREADS // self.per_thread_outputs
        across, down = min(_last_power(across), most), min(_last_power(down), most)
        self.width = min(across, WARP)
        height = min(down, most // self.width)
        self.width = min(across, most // height)
        self.is_block_x = along
        if along:
            self.step_input *= self.width
        else:
            self.step_output *= self.width
        is_split = _up(inputs, self.step_input) >= min(height * 16, MOST_VALUES)
        if is_split:
            self.step_input *= height
        else:
            self.step_output *= height
        values = _up(inputs, self.step_input)
        target = card.processors * (card.threads // (self.width * height))
        self.grid = _up(outputs // self.per_thread_outputs, self.step_output)
        self.blocks = 1
        if is_split and values >= MOST_VALUES and self.grid <= target:
            least = min(_up(target, self.grid), _up(values, LEAST_VALUES))
            self.blocks = max(least, _up(values, MOST_VALUES))

    def buffers(self, accumulated: int) -> list[int]:
        if self.blocks == 1:
            return []
        size = accumulated * self.outputs * self.blocks
        if not self.is_block_x:
            size *= self.width * self.per_thread_outputs
        return [size, 4 * self.grid]


def _vector(summed: list[tuple[int, int]], kept: list[tuple[int, int]]) -> int:
    """Return the outputs per thread: four if all sizes and strides are multiples of four, else fewer."""
    size = 4
    for number in (kept[0][0], *(stride for _, stride in summed), *(stride for _, stride in kept[1:])):
        while number % size:
            size //= 2
    return size


def _last_power(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def _up(number: int, by: int) -> int:
    return -(-number // by)
