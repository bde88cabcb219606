"""The description of a run, and its refusals."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import typing

import msgspec
import pytest

from gflow import fit
from gflow.errors import UsageError
from gflow.fit import estimate_serving
from gflow.ml.fit import formula, serving, torch_versions
from gflow.ml.fit.estimate import NeedsTorch, record
from gflow.ml.fit.models import hf_config
from gflow.ml.fit.recipe import ATTENTION, PRECISIONS, Recipe, optimizer, recipe_of
from gflow.ml.fit.requests import Model
from gflow.options.commands import fit_options, gpus_options, plan_options
from gflow.options.commands.fit_options import OPTIONS, RECIPE, SERVING
from gflow.options.parse import parse
from gflow.options.values import read
from gflow.text.fit import page


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
        hf_config.read(str(tmp_path))
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UsageError, match="no configuration"):
        hf_config.read(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        hf_config.read(str(tmp_path / "config.json"))


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


@pytest.mark.parametrize(
    ("version", "is_compared"),
    [
        ("2.10.1", False),
        ("2.11.0", True),
        ("2.13.0+cpu", True),
        ("2.15.1", True),
        ("2.16.0+cpu", False),
        ("3.0", False),
        ("unknown", False),
    ],
)
def test_version_of_torch_that_was_not_compared_is_a_doubt(version, is_compared):
    found = torch_versions.doubts(version)
    assert found == (
        set() if is_compared else
        {f"PyTorch {version} was not compared with measurements: 2.11 to 2.15 were"}
    )  # fmt: skip


def test_page_names_the_version_that_predicted_and_the_one_that_was_measured():
    found = formula.estimate(10**9, Recipe())
    for version, is_named in (("2.13.0", True), ("2.11.0+cu128", False), ("", False)):
        text = page(msgspec.structs.replace(found, torch=version, measured_with="2.11"))
        assert (f"predicted with PyTorch {version}, measured with 2.11\n" in text) is is_named


def test_quantised_weights_need_adapters():
    assert Recipe(quantize=4, lora=8).quantize == 4
    with pytest.raises(UsageError, match="cannot be trained"):
        Recipe(quantize=4)
    with pytest.raises(UsageError, match="3 bit"):
        Recipe(quantize=3, lora=8)


# Each training option of the command line: its value there, and values that mean the same in Python.
SAME = {
    "batch": ("8", [8, "8"]),
    "seq": ("64", [64]),
    "target-seq": ("16", [16]),
    "image": ("224", [224]),
    "precision": ("bf16-pure", ["bf16-pure"]),
    "optimizer": ("sgd:momentum=0.9", ["sgd:momentum=0.9", "SGD:momentum=0.9"]),
    "accumulate": ("4", [4]),
    "checkpointing": (None, [True]),
    "clip": ("1.0", [1.0, 1, "1.0"]),
    "attn": ("eager", ["eager"]),
    "lora": ("16", [16]),
    "quantize": ("4", [4]),
    "channels-last": (None, [True]),
    "expandable-segments": (None, [True]),
}
FIELDS = {"seq": "sequence", "target-seq": "target", "attn": "attention"}
# Options of the output of the commands, and keywords of a model that exists already.
COMMAND_ONLY = {"infer", "json", "help", "version"}
LIVE = {"model", "example", "step"}
SERVED = {"hf", "params", "gpu", "quantize"}
KINDS = {"flag": (bool,), "count": (int,), "size": (str, int), "path": (str, os.PathLike)}


@pytest.mark.parametrize(
    ("function", "options", "more", "less"),
    [
        (fit.estimate, fit_options.OPTIONS, LIVE | {"recipe"}, {option.name for option in SERVING}),
        (fit.largest, (*fit_options.MODEL, *RECIPE, *fit_options.CARD), LIVE, {"largest"}),
        (fit.plan, plan_options.OPTIONS, LIVE | {"gpu"}, set()),
        (fit.pick, gpus_options.PICK, LIVE, set()),
        (
            fit.estimate_serving,
            [option for option in OPTIONS if option in SERVING or option.name in SERVED],
            set(),
            set(),
        ),
    ],
)
def test_keywords_of_a_function_are_the_options_of_its_command(function, options, more, less):
    """Names, kinds of values and defaults; a signature and the table of options cannot diverge."""
    keywords = inspect.signature(function).parameters
    known = {option.name.replace("-", "_"): option for option in options}
    hidden = COMMAND_ONLY | {name.replace("-", "_") for name in less}
    assert {*keywords} == {*known} - hidden | more
    for name, keyword in keywords.items():
        option = known.get(name)
        if option is None:
            continue
        kinds = typing.get_args(keyword.annotation) or (keyword.annotation,)
        if expected := KINDS.get(option.kind):
            assert {typing.get_origin(kind) or kind for kind in kinds} == {*expected}, name
        written = re.search(r"\(default ([\w-]+)\)", option.help)
        if written:
            assert str(keyword.default) == written[1], name
        if keyword.default is not None and not option.is_flag:
            read(option, keyword.default)


def test_values_of_keywords_are_those_of_the_options():
    keywords = {name: one.annotation for name, one in inspect.signature(fit.estimate).parameters.items()}
    assert typing.get_args(keywords["precision"]) == PRECISIONS
    assert typing.get_args(keywords["attn"]) == ATTENTION


@pytest.mark.parametrize("function", [fit.estimate, fit.plan, fit.pick])
def test_default_of_a_keyword_is_what_is_predicted_without_it(function):
    """The defaults of the signature, given explicitly, change nothing."""
    needed = {"params": "1B", **({"on": "A100-80GB"} if function is fit.plan else {})}
    defaults = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    assert function(**{**defaults, **needed}) == function(**needed)


@pytest.mark.parametrize("name", SAME)
def test_an_option_means_the_same_in_python(name):
    typed, values = SAME[name]
    more = ["--lora=8"] if name == "quantize" else []
    words = [f"--{name}" if typed is None else f"--{name}={typed}", *more]
    expected = Model(parse(words, RECIPE)[0]).recipe
    assert expected != Recipe()
    for value in values:
        for keyword in (name, name.replace("-", "_"), FIELDS.get(name, name)):
            assert recipe_of({keyword: value, **({"lora": 8} if more else {})}) == expected, keyword


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", 0),
        ("seq", 1 << 30),
        ("image", 1 << 15),
        ("lora", -1),
        ("precision", "fp64"),
        ("optimizer", "adamm"),
        ("attn", "flash"),
        ("clip", "much"),
        ("clip", "0"),
        ("accumulate", "2.5"),
    ],
)
def test_what_the_command_refuses_is_refused_in_python(name, value):
    said = []
    for settings in (lambda: parse([f"--{name}={value}"], RECIPE)[0], lambda: {name: value}):
        with pytest.raises(UsageError) as caught:
            recipe_of(settings())
        said.append((caught.value.message, caught.value.hint))
    assert said[0] == said[1]


def test_zero_and_none_are_the_default():
    assert (
        recipe_of({"lora": 0, "quantize": 0, "clip": None, "target": 0, "checkpointing": False}) == Recipe()
    )


def test_unknown_keywords_are_refused_with_the_nearest():
    with pytest.raises(UsageError, match="unknown option 'bach'") as caught:
        recipe_of({"bach": 8})
    assert caught.value.hint == "did you mean batch?"


def test_a_recipe_takes_the_names_of_optimizers_that_people_write():
    assert Recipe(optimizer="adamw").optimizer == "AdamW"
    made = Recipe(optimizer="sgd:momentum=0.9", optimizer_options={"nesterov": True})
    assert (made.optimizer, made.optimizer_options) == ("SGD", {"momentum": 0.9, "nesterov": True})
    assert msgspec.structs.replace(made, batch=2).optimizer_options == made.optimizer_options


def test_a_rough_estimate_from_python():
    found = fit.estimate(params="7B", precision="bf16-pure", seq=2048, optimizer="adamw-8bit", gpu="h200")
    recipe = Recipe(precision="bf16-pure", sequence=2048, optimizer="AdamW8bit")
    expected = formula.estimate(7 * 10**9, recipe)
    assert found.items() >= msgspec.to_builtins(expected).items() and found.fits is True
    assert {**found, "gpus": 0, "fits": 0} == {
        **fit.estimate(params=7_000_000_000, recipe=recipe), "gpus": 0, "fits": 0
    }  # fmt: skip
    with pytest.raises(UsageError, match="recipe cannot be combined with batch"):
        fit.estimate(params="7B", recipe=recipe, batch=2)
    with pytest.raises(UsageError, match="unknown option 'bits'"):
        fit.largest(params="7B", bits=4)
    with pytest.raises(UsageError, match="cannot be combined with a model"):
        fit.estimate(params="7B", tv="resnet50")
    with pytest.raises(UsageError, match="no GPU"):
        fit.estimate(params="7B", gpu="H2000")


def test_serving_from_python():
    found = estimate_serving(params="7B", bits=4, tensor_parallel=2)
    expected = serving.by_count(7 * 10**9, bits=4, tensor_parallel=2)
    assert found.items() >= msgspec.to_builtins(expected).items()
    with pytest.raises(UsageError, match="--context must be at least 1"):
        estimate_serving(params="7B", context=0)
    with pytest.raises(UsageError, match="which model"):
        estimate_serving(bits=4)


def test_a_model_on_the_hub_is_read_from_the_local_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    with pytest.raises(UsageError, match=r"no config\.json of it in the Hugging Face cache") as caught:
        hf_config.read("meta-llama/Llama-3.1-8B")
    assert caught.value.hint.startswith("hf download meta-llama/Llama-3.1-8B config.json")
    model = tmp_path / "hub/models--meta-llama--Llama-3.1-8B"
    for revision, layers in (("aaa", 1), ("bbb", 2)):
        (model / "snapshots" / revision).mkdir(parents=True)
        (model / "snapshots" / revision / "config.json").write_text(f'{{"n_layer": {layers}}}')
    (model / "refs").mkdir()
    (model / "refs/main").write_text("aaa")
    assert hf_config.read("meta-llama/Llama-3.1-8B") == {"n_layer": 1}
    (model / "refs/main").unlink()
    assert hf_config.read("meta-llama/Llama-3.1-8B") in ({"n_layer": 1}, {"n_layer": 2})
