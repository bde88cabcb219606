"""When waiting jobs will start.

The queue is played forward (`core.playing`). Run times are guesses, and jobs that are still to come are not
known; so what is told is what became of those who were told the same before: when half of them had started,
and nearly all (`core.foretold`; `benchmarks/why.py` tries that on traces). Before anything is learnt, what is
played counts too.

To ask looks at the queue; to think does not, and may take long: a thread can do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import msgspec

from gflow.core.foretold import Case, wait_of
from gflow.core.ids import JobKey
from gflow.core.lanes import Group
from gflow.core.line import line, size_of
from gflow.core.model import Job
from gflow.core.playing import AT_WORST, EXPECTED, Play
from gflow.core.state import State

# So much later than foretold is not late.
SLACK_S = 600.0


class Start(msgspec.Struct, frozen=True):
    """When a job will probably start, with eight chances in ten between the other two.

    With luck it starts at once: of one that waits here, the earliest is now. On the boot
    clock here; `forecast.outlook` tells it on the wall clock.
    """

    expected: float
    earliest: float
    latest: float


class Question:
    """When a waiting job will start if the queue goes on as it stands now."""

    def __init__(self, state: State, job: Job, now: float) -> None:
        self._job = job
        self._now = now
        with_gpus = job.spec.shape.gpus > 0
        who = line(state, with_gpus, job)
        self._at_worst = Play(state, now, AT_WORST, who, with_gpus=with_gpus)
        # Only as long as nothing better is known.
        self._expected: Play | None = None
        if not state.foretold.is_learnt(self._at_worst.is_bounded):
            self._expected = Play(state, now, EXPECTED, who, with_gpus=with_gpus)

    def think(self) -> None:
        """The long part."""
        for play in (self._at_worst, self._expected):
            if play is not None:
                play.start_of(self._job.key)

    def start(self, state: State) -> Start | None:
        """What can be said; None: it is not in sight."""
        case = self.case(state)
        if case is None:
            return None
        middle, late = (
            self._now + wait_of(part, case.worst_s, case.is_bounded)
            for part in state.foretold.parts(case.is_bounded, self._now)
        )
        if self._expected is None:
            return Start(middle, self._now, late + SLACK_S)
        found = self._played(state, self._expected)
        return None if found is None else Start(found, self._now, max(found, late) + SLACK_S)

    def case(self, state: State) -> Case | None:
        """What will be compared with what comes: how long it waits at worst."""
        worst = self._played(state, self._at_worst)
        return None if worst is None else Case(self._now, worst - self._now, self._at_worst.is_bounded)

    def _played(self, state: State, play: Play) -> float | None:
        """When it starts in this story. Too far ahead to be played: when the work before it could be done."""
        found = play.start_of(self._job.key)
        if play.is_cut and self._job in state.ready:
            found = max(found or play.now, self._now + play.lengths.waiting * sum(_works(state, self._job)))
        return None if found == inf else found


def _works(state: State, job: Job) -> Iterator[float]:
    """How long the whole machine is busy with each group that comes before a job."""
    with_gpus = job.spec.shape.gpus > 0
    total = len(state.machine.usable) if with_gpus else state.machine.cpus
    for group, count in ahead_of(state, job):
        yield count * group.length * size_of(group.key.shape, with_gpus) / max(1, total)


def ahead_of(state: State, job: Job) -> list[tuple[Group, int]]:
    """Who stands before it, in order: of which group how many."""
    own = state.ready.group_of(job)
    mine = state.ready.standing(own)
    found = []
    for group in state.ready.groups.values():
        if group is own:
            before = sum(other < job.key for other in group.members)
            if before:
                found.append((mine, group, before))
        elif (standing := state.ready.standing(group)) < mine:
            found.append((standing, group, len(group.members)))
    found.sort(key=lambda one: one[0])
    return [(group, count) for _, group, count in found]


class Listing:
    """When those who wait will start, as `Question` says: the first in line, and some of the others."""

    def __init__(self, state: State, now: float) -> None:
        kinds = () if state.machine.is_drained else (False, True)
        self._now = now
        self._told = [self._story(state, with_gpus) for with_gpus in kinds]

    def _story(self, state: State, with_gpus: bool) -> tuple[Play, float | None]:
        """What is to be played, and which part of it is waited for in the middle, if that is known."""
        who, told = line(state, with_gpus), state.foretold
        play = Play(state, self._now, AT_WORST, who, with_gpus=with_gpus)
        if told.is_learnt(play.is_bounded):
            return play, told.parts(play.is_bounded, self._now)[0]
        return Play(state, self._now, EXPECTED, who, with_gpus=with_gpus), None

    def starts(self) -> dict[JobKey, float]:
        """The long part."""
        found: dict[JobKey, float] = {}
        for play, part in self._told:
            for key, start in play.all().items():
                wait = start - self._now
                found[key] = self._now + (wait if part is None else wait_of(part, wait, play.is_bounded))
        return found


def played_starts(state: State, now: float) -> dict[JobKey, float]:
    """When those who wait would start if all went as expected and nobody came: what is decided by this must
    not move with what happened to others."""
    found: dict[JobKey, float] = {}
    for with_gpus in (False, True):
        found |= Play(state, now, EXPECTED, line(state, with_gpus), with_gpus=with_gpus).all()
    return found
