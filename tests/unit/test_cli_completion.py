"""Completions, for any program and any place in the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.cli.registry import DESCRIBE, PROGRAMS, TOOLS, describe
from gflow.cli.tools import completion
from gflow.cli.tools.completion import candidates


@pytest.fixture(autouse=True)
def queue(monkeypatch):
    def jobs(*, active):
        return [("7", "R train"), ("8", "PD eval")] + ([] if active else [("3", "CD old")])

    monkeypatch.setattr(completion, "jobs", jobs)


def offered(line: str) -> list[str]:
    """The candidates at the end of a line; a line that ends in a space asks for a new word."""
    words = line.split(" ")
    return [word for word, _ in candidates(words, len(words) - 1)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gflow gq", ["gqueue"]),
        ("gflow queue --sta", ["--states"]),
        ("gflow gcancel ", ["7", "8"]),
        ("gbatch --gpu", ["--gpus", "--gpu-memory", "--gpu-type", "--gpus-per-task"]),
        ("gbatch --gpus 1 --depends-on ", ["7", "8", "3"]),
        ("gbatch -d ", ["7", "8", "3"]),
        ("gbatch --depends-on=", ["--depends-on=7", "--depends-on=8", "--depends-on=3"]),
        ("gbatch --depends-on =", ["7", "8", "3"]),
        ("gbatch --depends-on = 7", ["7"]),
        ("gbatch --gpus ", []),
        ("gbatch --output ", [":files"]),
        ("gbatch --gpus 1 pyth", [":commands"]),
        ("gbatch python --gpu", [":files"]),
        ("gbatch ne", ["new", ":commands"]),
        ("gqueue -s Ru", ["Running"]),
        ("gqueue -s ru", ["Running"]),
        ("gqueue --states Running,Q", ["Running,Queued"]),
        ("gqueue --states=Running,Q", ["--states=Running,Queued"]),
        ("gqueue -s Running,R", []),
        ("gqueue -f JOBID,NODEL", ["JOBID,NODELIST(REASON)"]),
        ("gqueue ", ["7", "8", "3"]),
        ("gjob sh", ["show"]),
        ("gjob log ", ["7", "8", "3"]),
        ("gjob hold ", ["7", "8"]),
        ("gjob log --fol", ["--follow"]),
        ("gcancel 7,", ["7,8"]),
        ("gctl set-l", ["set-limit"]),
        ("gctl set-limit ", ["7", "8"]),
        ("gflowd restart --gpu-allocation-strategy ", ["sequential", "random", "pack", "topology"]),
        ("gflowd restore ", [":files"]),
        ("gflowd up --conf", ["--config"]),
        ("gflow pl", ["plan"]),
        ("gctl quota ", ["list", "set", "remove"]),
        ("gctl quota set --max-running-g", ["--max-running-gpus"]),
        ("gctl reserve c", ["create", "cancel"]),
        ("gctl reserve list ", []),
        ("gctl token ", ["create", "list", "revoke"]),
        ("gflowd service ", ["install", "uninstall"]),
        ("ginfo i", ["info"]),
        ("/usr/bin/gjob sh", ["show"]),
        ("unheard-of ", []),
    ],
)
def test_completion_offers_expected_words(line, found):
    assert offered(line) == found


def test_options_come_with_what_they_mean():
    assert ("--gpus", "number of whole, unshared GPUs (default 0)") in candidates(["gbatch", "--gp"], 1)


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_every_long_option_of_every_program_is_offered(program):
    described = describe(program)
    assert {f"--{option.name}" for option in described.options} <= set(offered(f"{program} --"))


def test_gflow_offers_every_program_and_tool():
    assert set(offered("gflow ")) == {*PROGRAMS, *TOOLS, "completion"}


def test_every_program_is_described():
    assert DESCRIBE.keys() == PROGRAMS.keys()


@given(
    st.lists(
        st.sampled_from(["gjob", "show", "-s", "--states", "=", "", "--", "-", "x", "7,", "--gpus=1"]),
        max_size=5,
    )
)
def test_any_line_can_be_completed(words):
    for program in ("gbatch", "gqueue", "gjob", "gflow", "gflowd"):
        for cursor in range(1, len(words) + 2):
            candidates([program, *words], cursor)
