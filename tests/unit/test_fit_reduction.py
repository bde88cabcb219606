"""Scratch memory of CUDA's reductions, against what an H200 requested."""

from __future__ import annotations

import pytest

from gflow.ml.fit.cuda import reduction
from gflow.ml.fit.cuda.architectures import HOPPER

MIB = 1 << 20


def strides(shape):
    made = [1]
    for size in reversed(shape[1:]):
        made.insert(0, made[0] * size)
    return made


# Gradients of biases in GPT-2, seen in the traces of its allocator: rows of the batch summed away.
@pytest.mark.parametrize(
    ("shape", "buffer"),
    [
        ((4096, 3072), 96 * MIB),
        ((4096, 2304), 72 * MIB),
        ((4096, 768), 24 * MIB),
    ],
)
def test_gradients_of_biases(shape, buffer):
    assert reduction.scratch(shape, strides(shape), [0], 4, 4, HOPPER)[0] == buffer


def test_a_sum_along_short_rows_needs_none():
    assert reduction.scratch((4096, 64), (64, 1), [1], 4, 4, HOPPER) == []


def test_an_empty_tensor_needs_none():
    assert reduction.scratch((0, 64), (64, 1), [0], 4, 4, HOPPER) == []


def test_reduction_beyond_32_bit_index_is_halved():
    whole = reduction.scratch((1 << 20, 1024), (1024, 1), [0], 4, 4, HOPPER)
    half = reduction.scratch((1 << 19, 1024), (1024, 1), [0], 4, 4, HOPPER)
    assert whole == half != []
