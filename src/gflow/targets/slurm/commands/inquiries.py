"""Questions to scontrol and sacct about single jobs, asked in the background, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gflow.targets.slurm.background_calls import Calls
from gflow.targets.slurm.commands.slurm_cli import Slurm, Verdict

# Questions in one call. The others are asked after the next listing.
MAX_QUESTIONS = 16


class Question(NamedTuple):
    """A Slurm job by its id, and the tag that it must have."""

    id: str
    tag: str


class Answer(NamedTuple):
    """How a job ended; None: neither the controller nor the accounting knows."""

    verdict: Verdict | None


class Inquiries:
    """Open questions and answers that were not used yet."""

    def __init__(self, slurm: Slurm, calls: Calls, on_answers: Callable[[], None]) -> None:
        self._slurm, self._calls, self._on_answers = slurm, calls, on_answers
        self._open: dict[Question, None] = {}
        self._answers: dict[Question, Answer] = {}
        self._is_asking = False

    def answer(self, id: str, tag: str) -> Answer | None:
        """The answer about a job, which is valid once; None: it is not known yet, and is asked for."""
        question = Question(id, tag)
        found = self._answers.pop(question, None)
        if found is None:
            self._open[question] = None
        return found

    def ask(self) -> None:
        """Ask the open questions, unless earlier ones are not answered yet."""
        if not self._open or self._is_asking:
            return
        asked = list(self._open)[:MAX_QUESTIONS]
        self._open.clear()
        self._answers.clear()  # they were not used, so they are of no interest any more
        self._is_asking = True

        def done(answers: dict[Question, Answer]) -> None:
            self._is_asking = False
            self._answers |= answers
            self._on_answers()

        slurm = self._slurm
        none: dict[Question, Answer] = {}
        self._calls.start(lambda: {one: Answer(slurm.verdict(*one)) for one in asked}, done, none)
