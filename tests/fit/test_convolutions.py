"""Convolutions as cuDNN computes them, compared with single ones that were measured on an H200."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gflow.ml.fit.cuda import convolution, convolution_copies  # noqa: E402
from gflow.ml.fit.cuda.architectures import HOPPER  # noqa: E402
from gflow.ml.fit.cuda.convolution_copies import INPUT, RESULT, Layer, size_of  # noqa: E402

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
GRADIENTS = {"input": [True, False, False], "weight": [False, True, False]}
# Smaller allocations were not recorded.
LEAST = 16384
MIB = 1 << 20


class Recorder:
    """Records what a convolution allocates and releases, as `workspace.Sequence` does."""

    def __init__(self) -> None:
        self.events: list[int] = []

    def result(self, tensor) -> None:
        self.events.append(size_of(tensor))

    @contextlib.contextmanager
    def scratch(self, *sizes):
        self.events += sizes
        yield
        self.events += [-size for size in reversed(sizes)]


class Measured:
    """A measured convolution, with tensors that have no memory."""

    def __init__(self, row) -> None:
        shape, x_first, weights, weights_first, *self.rest, self.groups, self.dtype = row["conv"]
        self.row, self.is_ieee = row, not row.get("tf32", 1)
        self.x, self.weight = self._tensor(shape, x_first), self._tensor(weights, weights_first)
        *where, is_transposed, self.output_padding = self.rest
        self.rest = [*where, bool(is_transposed), self.output_padding, self.groups]
        layout = convolution.memory_format(self.x, self.weight)
        self.y = torch.convolution(self.x, self.weight, None, *self.rest).contiguous(memory_format=layout)
        self.is_first = layout == torch.contiguous_format

    def _tensor(self, shape, is_first):
        made = torch.empty(shape, dtype=getattr(torch, self.dtype), device="meta")
        return made if is_first else made.contiguous(memory_format=LAST[len(shape)])

    def predicted(self, way) -> list[int]:
        recorder = Recorder()
        if way == "forward":
            convolution.forward((self.x, self.weight, None, *self.rest), self.y, recorder, HOPPER)
            return recorder.events
        wanted = GRADIENTS.get(way) or [self.x.shape[1] > convolution_copies.THIN, True, False]
        out = [
            one if is_wanted else None for one, is_wanted in zip((self.x, self.weight), wanted, strict=False)
        ]
        args = (self.y, self.x, self.weight, None, *self.rest, wanted)
        convolution.backward(args, [*out, None], recorder, HOPPER)
        return recorder.events

    def gradients(self, wanted) -> list[int]:
        recorder = Recorder()
        args = (self.y, self.x, self.weight, None, *self.rest, wanted)
        convolution.backward(args, [self.x, self.weight, None], recorder, HOPPER)
        return recorder.events

    def error(self, way) -> float:
        """The error of what is held at most, as a share of input and output."""
        peaks = [peak(self.predicted(way)), peak(self.row[way])]
        return abs(peaks[0] - peaks[1]) / (size_of(self.x) + size_of(self.y))


def peak(events) -> int:
    return max(accumulate(size for size in events if abs(size) >= LEAST), default=0)


@cache
def measured():
    """All measured convolutions: those of the models of the fourth round, and a grid of shapes."""
    with gzip.open(BENCHMARKS / "fit_convolutions_measured.jsonl.gz", "rt") as file:
        rows = [*map(json.loads, file), *map(json.loads, (BENCHMARKS / "fit_layers_measured.jsonl").open())]
    return [Measured(row) for row in rows if "conv" in row]


# By what is computed: the share of large convolutions that are off by more than 5 % of input and output.
FAR = {"forward": 0.10, "input": 0.07, "weight": 0.32, "backward": 0.21}
LARGE = 16 * MIB


def test_large_convolutions_allocate_nearly_what_was_measured(monkeypatch):
    cases, far, total = measured(), Counter(), Counter()
    for case in cases:
        if size_of(case.x) + size_of(case.y) < LARGE:
            continue
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not case.is_ieee)
        for way in FAR:
            if way in case.row:
                total[way] += 1
                far[way] += case.error(way) > 0.05
    assert len(cases) == 3708
    assert min(total.values()) > 170
    assert [way for way, limit in FAR.items() if far[way] > limit * total[way]] == [], (far, total)


def layer(shape, filters, stride=1, dtype=torch.float32, padding=0):
    x, weight = (torch.empty(size, dtype=dtype, device="meta") for size in (shape, filters))
    stride = [stride] * (len(shape) - 2)
    y = torch.nn.functional.conv2d(x, weight, stride=stride, padding=padding)
    return Layer(x, weight, y, stride, 1, is_transposed=False, card=HOPPER)


@pytest.mark.parametrize(
    ("ins", "outs", "side", "expected"),
    [(64, 128, 56, "none"), (256, 512, 56, "x"), (512, 1024, 28, "both"), (1024, 2048, 14, "both")],
)
def test_pointwise_convolutions_with_a_stride_of_a_frozen_resnet(ins, outs, side, expected):
    """Its peak is the workspace of these layers: 30 % too high when all of them copied both."""
    one = layer((64, ins, side, side), (outs, ins, 1, 1), 2)
    sizes = {"none": 0, "x": one.x + one.weight, "both": one.x + one.y}
    assert convolution_copies.channels_first(one, RESULT) == sizes[expected]


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 4), (torch.bfloat16, 8), (torch.float16, 8)])
def test_channels_are_padded_to_sixteen_bytes(dtype, step):
    one = layer((8, 33, 40, 40), (65, 33, 3, 3), dtype=dtype, padding=1)
    ins, outs = -(-33 // step) * step, -(-65 // step) * step
    size = dtype.itemsize
    expected = 8 * 1600 * (ins + outs) * size + 9 * ins * outs * size
    assert convolution_copies.channels_first(one, INPUT) == pytest.approx(expected, rel=1e-6)


def test_without_tensor_cores_nothing_is_converted(monkeypatch):
    assert (
        convolution_copies.channels_first(layer((8, 64, 40, 40), (64, 64, 3, 3), dtype=torch.float64), INPUT)
        == 0
    )
    one = layer((8, 64, 40, 40), (64, 64, 3, 3))
    assert convolution_copies.channels_first(one, INPUT) > one.x
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert convolution_copies.channels_first(one, INPUT) == 0


def test_double_precision_has_channels_first():
    """ATen/native/ConvUtils.h: cuDNN's kernels for double precision know no other layout."""
    x, weight = (
        torch.empty(2, 16, 8, 8, device="meta").to(memory_format=torch.channels_last) for _ in range(2)
    )
    assert convolution.memory_format(x, weight) == torch.channels_last
    for first, second in ((x.double(), weight), (x, weight.double())):
        assert convolution.memory_format(first, second) == torch.contiguous_format


def test_frozen_weights_need_no_copy_of_the_input():
    """The input has channels first, the weights have them last: only their gradient needs the copy."""
    where = [[1, 1], [1, 1], [1, 1], 0, [0, 0]]
    one = Measured({"conv": [[4, 16, 64, 64], 1, [16, 16, 3, 3], 0, *where, 1, "float32"]})
    x, weight = size_of(one.x), size_of(one.weight)
    assert list(filter(None, one.gradients([True, False, False]))) == [x]
    assert list(filter(None, one.gradients([False, True, False]))) == [x, weight, -x]
