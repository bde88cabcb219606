"""When waiting jobs will start.

The queue is played forward (`core.forecast.queue_simulation`). Run times are guesses, and jobs that are
still to come are not known; so what is told is what became of those who were told the same before: when
half of them had started, and nearly all (`core.forecast.calibration`; `benchmarks/why.py` tries that on
traces). Before anything is learnt, what is played counts too.

All of it is computed from a snapshot (`core.forecast.queue_snapshot`), which may take long: a thread can do
it.
"""

from __future__ import annotations

from math import inf

import msgspec

from gflow.core.forecast.calibration import EtaSample, wait_of
from gflow.core.forecast.queue_simulation import AT_WORST, EXPECTED, Lengths, QueueSimulation
from gflow.core.forecast.queue_snapshot import Member, QueueSnapshot, Waiting, ahead_of, line, size_of
from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.state.state import State

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
    """When a waiting job will start if the queue goes on as it stands in a snapshot."""

    def __init__(self, snapshot: QueueSnapshot, job: Member) -> None:
        self._snapshot, self._job = snapshot, job
        self._with_gpus = job[1].shape.gpus > 0
        self._at_worst: QueueSimulation | None = None
        # Only as long as nothing better is known.
        self._expected: QueueSimulation | None = None
        # How many come before it, and how long the whole machine is busy with them.
        self._ahead, self._work = 0, 0.0

    def think(self) -> None:
        """The long part. Looks at nothing but the snapshot: any thread can do it."""
        if self.is_answered:
            return
        for group, count in ahead_of(self._snapshot, self._job):
            self._ahead += count
            self._work += count * group.length * size_of(group.shape, self._with_gpus)
        self._work /= max(1, self._snapshot.pool(self._with_gpus).usable)
        who = line(self._snapshot, self._with_gpus, self._job)
        at_worst = self._play(AT_WORST, who)
        if not self._snapshot.is_learnt[at_worst.is_bounded]:
            self._expected = self._play(EXPECTED, who)
        self._at_worst = at_worst

    def _play(self, lengths: Lengths, who: list[Waiting]) -> QueueSimulation:
        play = QueueSimulation(self._snapshot, lengths, who, with_gpus=self._with_gpus)
        play.start_of(self._job[0])
        return play

    @property
    def is_answered(self) -> bool:
        return self._at_worst is not None

    @property
    def ahead(self) -> int:
        """How many come before it."""
        self.think()
        return self._ahead

    def start(self) -> Start | None:
        """What can be said; None: it is not in sight."""
        case, now = self.case(), self._snapshot.now
        if case is None:
            return None
        middle, late = (
            now + wait_of(part, case.worst_s, case.is_bounded)
            for part in self._snapshot.parts[case.is_bounded]
        )
        if self._expected is None:
            return Start(middle, now, late + SLACK_S)
        found = self._played(self._expected)
        return None if found is None else Start(found, now, max(found, late) + SLACK_S)

    def case(self) -> EtaSample | None:
        """What will be compared with what comes: how long it waits at worst."""
        self.think()
        assert self._at_worst is not None
        worst, now = self._played(self._at_worst), self._snapshot.now
        return None if worst is None else EtaSample(now, worst - now, self._at_worst.is_bounded)

    def _played(self, play: QueueSimulation) -> float | None:
        """When it starts in this story. Too far ahead to be played: when the work before it could be done."""
        found = play.start_of(self._job[0])
        if play.is_cut:
            found = max(found or play.now, self._snapshot.now + play.lengths.waiting * self._work)
        return None if found == inf else found


def question_about(state: State, job: Job, snapshot: QueueSnapshot) -> Question | None:
    """About a job that waits for resources; None: it does not any more."""
    group = state.ready.where.get(job.key)
    copy = None if group is None else snapshot.copy_of(group, job.key)
    return None if copy is None else Question(snapshot, (job.key, copy))


def question_of(state: State, job: Job, now: float) -> Question:
    """About a job that waits for resources, from a snapshot of its own."""
    found = question_about(state, job, QueueSnapshot.of(state, now))
    assert found is not None
    return found


class Listing:
    """When those who wait will start, as `Question` says: the first in line, and some of the others."""

    def __init__(self, snapshot: QueueSnapshot) -> None:
        self._snapshot = snapshot

    def starts(self) -> dict[JobKey, float]:
        """The long part. Looks at nothing but the snapshot: any thread can do it."""
        found: dict[JobKey, float] = {}
        for with_gpus in () if self._snapshot.is_drained else (False, True):
            found |= self._starts(with_gpus)
        return found

    def _starts(self, with_gpus: bool) -> dict[JobKey, float]:
        """By which part of the worst case is waited for in the middle, if that is known."""
        snapshot, now = self._snapshot, self._snapshot.now
        who = line(snapshot, with_gpus)
        worst = QueueSimulation(snapshot, AT_WORST, who, with_gpus=with_gpus)
        if not snapshot.is_learnt[worst.is_bounded]:
            return QueueSimulation(snapshot, EXPECTED, who, with_gpus=with_gpus).all()
        part = snapshot.parts[worst.is_bounded][0]
        return {key: now + wait_of(part, start - now, worst.is_bounded) for key, start in worst.all().items()}


def played_starts(state: State, now: float) -> dict[JobKey, float]:
    """When those who wait would start if all went as expected and nobody came: what is decided by this must
    not move with what happened to others."""
    snapshot, found = QueueSnapshot.of(state, now), dict[JobKey, float]()
    for with_gpus in (False, True):
        found |= QueueSimulation(snapshot, EXPECTED, line(snapshot, with_gpus), with_gpus=with_gpus).all()
    return found
