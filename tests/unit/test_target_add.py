"""The questions of gflow target add."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gflow.cli.tools.target_add import ask_missing

FOUND = {"partition": ["main", "low"], "account": ["lab", "class"], "chdir": ["/scratch/ann"]}


def typed(*lines: str) -> tuple[Callable[[str], str], list[str]]:
    """A terminal on which these lines are typed, then the end of the input; and its prompts."""
    rest, prompts = list(lines), []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        if not rest:
            raise EOFError
        return rest.pop(0)

    return read, prompts


@pytest.mark.parametrize(
    ("lines", "answers"),
    [
        (
            ("low", "lab", "/scratch/ann/runs"),
            {"partition": "low", "account": "lab", "chdir": "/scratch/ann/runs"},
        ),
        (("", " lab ", ""), {"account": "lab"}),
        (("lwo", "low", "", "runs", "/data"), {"partition": "low", "chdir": "/data"}),
        ((), {}),
    ],
)
def test_answers_are_taken_and_wrong_ones_are_asked_again(
    lines: tuple[str, ...], answers: dict[str, str]
) -> None:
    assert ask_missing(FOUND, {}, typed(*lines)[0]) == answers


def test_options_and_single_choices_are_not_asked() -> None:
    read, prompts = typed()
    assert ask_missing({"partition": ["main"], "account": [], "chdir": []}, {}, read) == {}
    assert ask_missing(FOUND, {"partition": "main", "account": "lab", "chdir": "/x"}, read) == {}
    assert prompts == []
