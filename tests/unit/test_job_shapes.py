"""Shapes: in a word, by name, and what is wrong with those that are none."""

import pytest

from gflow.config.job_shapes import shapes_of
from gflow.config.load import load
from gflow.core.lifecycle.update import override_spec
from gflow.errors import UsageError
from gflow.options.node_shape import expand_shapes, is_name, parse_shape
from gflow.options.update import FIXED
from gflow.wire.requests import JobRequest, Reader
from gflow.wire.update import describe_options

from .builders import job

SHAPES = {"big": {"nodes": 2, "gpus": 4, "partition": "a100", "on": "slurm", "project": "lusu"}}


@pytest.mark.parametrize("word", ["n4_gpu1", "n4g1", "4x1", "N4_GPU1", " 4x1 "])
def test_shape_forms(word):
    assert parse_shape(word) == (4, 1)
    assert not is_name(word)


NAMED = {
    "big": True,
    "a100-80gb": True,
    "n4-gpu1": True,
    "4": False,
    "": False,
    "b g": False,
    "x" * 300: False,
}


@pytest.mark.parametrize(("word", "named"), NAMED.items())
def test_shape_names(word, named):
    assert is_name(word) is named


def test_shape_expansion_and_precedence():
    assert expand_shapes({"shape": "4x1", "gpus": 2}, {}) == {"nodes": 4, "gpus": 2}
    assert expand_shapes({"shape": "big", "gpus": 2}, SHAPES) == SHAPES["big"] | {"shape": "big", "gpus": 2}
    assert expand_shapes({"shape": None}, SHAPES) == {"shape": None}
    with pytest.raises(UsageError, match="there is no shape 'bgi'") as refused:
        expand_shapes({"shape": "bgi"}, SHAPES)
    assert refused.value.hint == "did you mean big?"


RACED = {"wide": {"nodes": 4, "gpus": 1}, "whole": {"gpus": 4}} | SHAPES


@pytest.mark.parametrize("value", ["local:whole,wide", ["local:whole", " wide "], "local:n1_gpu4,4x1"])
def test_a_race_by_shape(value):
    reader = Reader(lambda text: "-", (), {}, RACED)
    request = JobRequest(command=["true"], cwd="/", options={"race": value, "on": "slurm"})
    assert reader.read(request)[0].spec.race == ("local:n1_gpu4", "n4_gpu1")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("wdie,whole", "there is no shape 'wdie'"),
        ("wide,big", "the shape big also sets on, partition, project"),
        ("wide,4x1", "two different shapes"),
        ("local:wide,whole", "this machine is one node"),
        (7, "takes text"),
    ],
)
def test_a_race_that_cannot_be(value, said):
    reader = Reader(lambda text: "-", (), {}, RACED)
    with pytest.raises(UsageError, match=said):
        reader.read(JobRequest(command=["true"], cwd="/", options={"race": value, "on": "slurm"}))


def test_a_submission_by_shape():
    """A shape counts more than what the daemon adds by itself, and less than what the job says."""
    reader = Reader(lambda text: "-", (), {"on": "elsewhere", "grace": 7}, SHAPES)
    request = JobRequest(command=["true"], cwd="/", options={"shape": "big", "nodes": 3})
    spec = reader.read(request)[0].spec
    assert (spec.nodes, spec.gpus, spec.partition, spec.on) == (3, 4, "a100", "slurm")
    assert (spec.project, spec.shape_name, spec.grace_s) == ("lusu", "big", 7)


def test_an_update_by_shape():
    """What cannot be changed any more stays as it was."""
    change = describe_options({"shape": "big"}, FIXED, {}, SHAPES)
    assert change.fields == {"nodes": 2, "gpus": 4, "partition": "a100", "shape_name": "big"}
    before = job(1, gpus=4, shape_name="big")
    assert override_spec(before, before.spec, {"gpus": 2}).shape_name == ""
    assert override_spec(before, before.spec, {"priority": 2}).shape_name == "big"


@pytest.mark.parametrize(
    ("table", "said", "hint"),
    [
        ({"big": {"gpsu": 2}}, "f: unknown setting 'shapes.big.gpsu'", "did you mean shapes.big.gpus?"),
        ({"big": {"gpus": "many"}}, "f: shapes.big: --gpus", ""),
        ({"n4_gpu1": {"gpus": 1}}, "f: 'n4_gpu1' is not a valid shape name", "a shape name is a word"),
        ({"big": {}}, "f: the shape big is empty", "nodes = 2"),
    ],
)
def test_invalid_shape_is_refused(table, said, hint):
    with pytest.raises(UsageError) as refused:
        shapes_of(table, "f")
    assert said in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[shape.big]\ngpus = 2\n", "did you mean shapes.big.gpus?"),
        ('[tagets.gilbreth]\ntype = "slurm"\n', "did you mean targets.gilbreth.type?"),
        ('default_traget = "slurm"\n', "did you mean default_target?"),
    ],
)
def test_a_table_that_is_misspelt(tmp_path, text, hint):
    path = tmp_path / "gflow.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        load({}, {}, str(path), str(tmp_path / "none"))
    assert refused.value.hint == hint
