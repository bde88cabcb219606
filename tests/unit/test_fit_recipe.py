"""The description of a run, and its refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gflow.errors import UsageError
from gflow.ml.fit.estimate import NeedsTorch, record
from gflow.ml.fit.models.hf_config import read
from gflow.ml.fit.recipe import Recipe, optimizer


def test_optimizer_names_are_recognised():
    assert optimizer("adamw") == ("AdamW", {})
    assert optimizer("adamw-fused") == ("AdamW", {"fused": True})
    assert optimizer("adamw-8bit") == ("AdamW8bit", {})
    with pytest.raises(UsageError, match="no states in 8 bit"):
        optimizer("sgd-8bit")
    assert optimizer("sgd:momentum=0.9,nesterov=true") == ("SGD", {"momentum": 0.9, "nesterov": True})
    assert optimizer("LBFGS") == ("LBFGS", {})


@pytest.mark.parametrize("name", ["adamm", "adamw-quick", "sgd:momentum=much"])
def test_unknown_optimizers_are_refused(name):
    with pytest.raises(UsageError):
        optimizer(name)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 0},
        {"batch": 1 << 30},
        {"sequence": 0},
        {"precision": "fp64"},
        {"attention": "flash"},
        {"clip": 0.0},
        {"clip": float("nan")},
    ],
)
def test_impossible_recipes_are_refused(settings):
    with pytest.raises(UsageError):
        Recipe(**settings)


def test_configurations_that_are_none(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UsageError, match="no configuration"):
        read(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        read(str(tmp_path / "config.json"))


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_missing_package_is_named(missing, monkeypatch):
    def find_spec(name):
        return None if name == missing else object()

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    with pytest.raises(NeedsTorch, match=f"needs {missing}"):
        record(hf={"model_type": "gpt2"}, recipe=Recipe())


def test_gflow_is_imported_without_torch():
    code = "import sys, gflow, gflow.fit, gflow.cli.tools.fit; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_quantised_weights_need_adapters():
    assert Recipe(quantize=4, lora=8).quantize == 4
    with pytest.raises(UsageError, match="cannot be trained"):
        Recipe(quantize=4)
    with pytest.raises(UsageError, match="3 bit"):
        Recipe(quantize=3, lora=8)
