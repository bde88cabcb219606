"""Which rows of the queue are ours: by their tag, or, where a site rewrites it, by their batch script.

The tag is the comment of a job. If a job whose number sbatch gave us has another comment, its batch script,
which Slurm keeps, tells whether it is ours: the number may belong to another job by now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gflow.targets.slurm.background_calls import Calls
from gflow.targets.slurm.commands.slurm_cli import Row, Slurm

# How our tags begin.
MARK = "gflow:"
# Questions in one call. The others are asked after the next listing.
MAX_QUESTIONS = 16


class Known(NamedTuple):
    """Whether a job is ours, and the tick at which that was asked."""

    is_ours: bool
    at: int


class Identities:
    """Answers about jobs with a rewritten comment, by job id and tag."""

    def __init__(
        self, slurm: Slurm, calls: Calls, tick: Callable[[], int], on_answers: Callable[[], None]
    ) -> None:
        self._slurm, self._calls, self._tick, self._on_answers = slurm, calls, tick, on_answers
        self._known: dict[tuple[str, str], Known] = {}
        self._open: dict[tuple[str, str], None] = {}
        self._is_asking = False
        # Ids of the last listing of which it is not known yet whether they are ours.
        self.unclear: set[str] = set()

    def resolve(self, rows: list[Row], tags: Mapping[str, str], ordered: Mapping[str, int]) -> list[Row]:
        """The rows, with our tag as the comment of jobs that are ours and have another one.

        `tags`: the tag that each job should have whose number we know. `ordered`: the ticks of orders for
        jobs, by their tags. An action needs an answer that is newer than its order.
        """
        self.unclear.clear()
        return [self._resolve(row, tags.get(row.array or row.id, ""), ordered) for row in rows]

    def _resolve(self, row: Row, tag: str, ordered: Mapping[str, int]) -> Row:
        if not tag or row.comment.startswith(MARK):
            return row
        number = row.array or row.id
        known = self._known.get((number, tag))
        if known is None or known.at < ordered.get(tag, 0):
            self._open[number, tag] = None
            self.unclear.update((row.id, number))
            return row
        return row._replace(comment=tag) if known.is_ours else row

    def ask(self) -> None:
        """Ask the open questions, unless earlier ones are not answered yet."""
        if not self._open or self._is_asking:
            return
        asked = list(self._open)[:MAX_QUESTIONS]
        self._open.clear()
        self._is_asking = True
        at = self._tick()

        def done(answers: dict[tuple[str, str], bool]) -> None:
            self._is_asking = False
            self._known |= {one: Known(is_ours, at) for one, is_ours in answers.items()}
            self._on_answers()

        slurm = self._slurm
        none: dict[tuple[str, str], bool] = {}
        self._calls.start(lambda: {one: slurm.has_tag(*one) for one in asked}, done, none)
