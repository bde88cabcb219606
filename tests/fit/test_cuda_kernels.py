"""Kernels that a CUDA build of PyTorch chooses, by its source, on a build that has none of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gflow.ml.fit.estimate import record  # noqa: E402
from gflow.ml.fit.recipe import Recipe  # noqa: E402


def requests(model, batch, precision="fp32"):
    """Operator, phase and bytes of what the first step of a model requests."""
    trace = record(py=lambda: (model, batch), recipe=Recipe(precision=precision, steps=1))
    return [(one.operator, one.phase, one.size) for one in trace.requests]


class Normed(torch.nn.Module):
    def __init__(self, weight_type=None) -> None:
        super().__init__()
        self.weight, self.weight_type = torch.nn.Parameter(torch.ones(512)), weight_type

    def forward(self, x):
        weight = self.weight.to(self.weight_type or x.dtype)
        return torch.nn.functional.rms_norm(x * self.weight, (512,), weight).sum()


X = {"x": torch.empty(4, 64, 512)}


@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("bf16-pure", 2)])
def test_rms_norm_is_one_kernel_that_keeps_one_number_per_row(precision, size):
    made = requests(Normed(), X, precision)
    norms = [(phase, bytes_) for operator, phase, bytes_ in made if "rms_norm" in operator]
    forward = [("forward", 4 * 64 * 512 * size), ("forward", 4 * 64 * 4)]
    assert norms == [*forward, ("backward", 4 * 64 * 512 * size), ("backward", 512 * size)]


def test_rms_norm_with_weights_of_another_type_is_composed():
    """ATen/native/layer_norm.cpp: the fused kernel needs input and weight of one type."""
    assert not any("rms_norm" in operator for operator, _, _ in requests(Normed(torch.bfloat16), X))
