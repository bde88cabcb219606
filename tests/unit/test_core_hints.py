"""The engine names fields; `wire.shell_words` renders hints with flags and commands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gflow
from gflow.core.forecast.explain import Blocker
from gflow.core.model import JobState
from gflow.errors import Hint, Refused, no_gpu, no_job
from gflow.wire.answers.problems import error_view, problem
from gflow.wire.shell_words import HINTS, spell_blockers, spell_change, spell_hint

from .builders import job

SOURCE = Path(gflow.__file__).parent
MODULES = sorted((SOURCE / "core").rglob("*.py"))
COMMAND_WORD = re.compile(r"--[a-z]|\b(gbatch|gcancel|gctl|gflowd|ginfo|gjob|gqueue|grun|gstats)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def literals(path: Path) -> list[ast.Constant]:
    """The string literals of a module, without docstrings."""
    tree = ast.parse(path.read_text())
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str)
    return [node for node in strings if id(node) not in statements]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_engine_has_no_words_of_the_command_line(path):
    found = [f"{node.lineno}: {node.value}" for node in literals(path) if COMMAND_WORD.search(node.value)]
    assert not found


def keys_of_hints(path: Path) -> set[str]:
    """The keys with which a module creates hints."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Hint"]
    nodes = [node for call in calls for node in ast.walk(call.args[0])]
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


def test_the_command_line_has_words_for_every_hint_and_no_others():
    used = set().union(*map(keys_of_hints, [*MODULES, SOURCE / "errors.py"]))
    assert used == set(HINTS)


def test_a_hint_is_data_and_each_face_renders_it():
    error = no_gpu(3)
    assert error.hint == "see which GPUs there are"
    assert spell_hint(error) == problem(error).hint == "see what there is with ginfo"
    assert error_view(error).error.hint == "see what there is with ginfo"


def test_an_unknown_job_names_the_command_that_lists_jobs_or_tasks():
    assert spell_hint(no_job("7")) == "gqueue -a lists all jobs, also those that have ended"
    assert spell_hint(no_job("8_99")) == "gjob show 8 says which tasks the array has"
    assert str(no_job("7", " to depend on")) == "there is no job 7 to depend on"


def test_values_of_a_hint_are_filled_in():
    error = Refused("it has job 4 already", hint=Hint("hold_first", "hold job 4 first", job="4"))
    assert spell_hint(error) == "first: gjob hold 4"


def test_a_hint_that_is_text_is_shown_as_it_is():
    assert spell_hint(Refused("no", hint="write {x}")) == "write {x}"
    assert spell_hint(Refused("no")) == ""


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"gpus": 2}, "--gpus 2"),
        ({"gpu_type": ""}, "without --gpu-type"),
        ({"cpus": 3}, "--cpus 3"),
        ({"memory_mib": 512}, "--memory 512M"),
        ({"time_limit_s": 1800}, "--time 30"),
        ({"nodes": 4, "gpus": 1}, "--nodes 4 --gpus 1"),
        ({"partition": "high"}, "--partition high"),
    ],
)
def test_a_change_in_options(change, options):
    assert spell_change(change) == options


def test_a_held_job_is_shown_with_the_command_that_releases_it():
    blockers = [Blocker("JobHeldUser"), Blocker("Drained")]
    first, second = spell_blockers(job(7, state=JobState.HOLD), blockers)
    assert (str(first), str(second)) == ("JobHeldUser: gjob release 7 lets it go on", "Drained")
    assert spell_blockers(job(7), blockers) == blockers
