"""`python -m gflow`: runs the program that its first word names, or gflow."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["gjob", "--help"], "usage: gjob "),
        (["gflow", "launch", "--help"], "usage: gflow launch "),
        (["launch", "--help"], "usage: gflow launch "),
        (["gpus", "--help"], "usage: gflow gpus "),
        (["gflow", "help", "gbatch"], "usage: gbatch "),
        (["gflow", "help", "job", "log"], "usage: gjob log "),
    ],
)
def test_module_runs_the_program_that_is_named(words: list[str], usage: str) -> None:
    done = subprocess.run([sys.executable, "-m", "gflow", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout.startswith(usage)) == (0, True), done.stdout + done.stderr
