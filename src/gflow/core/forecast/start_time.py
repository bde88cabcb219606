"""ETA: when waiting jobs will start.

The queue is simulated (`core.forecast.queue_simulation`). Run times are estimates, and future submissions are
unknown. So the ETA is the simulated worst case, scaled by the outcomes of earlier forecasts: by when half of
those jobs had started, and by when nearly all (`core.state.eta_calibration`; `benchmarks/why.py` evaluates it
on traces). Until there are enough outcomes, the expected start of the simulation is used too.

Everything is computed from a snapshot (`core.forecast.queue_snapshot`). That may take long, so a thread can
do it.
"""

from __future__ import annotations

from math import inf

import msgspec

from gflow.core.forecast.queue_simulation import AT_WORST, EXPECTED, Lengths, QueueSimulation
from gflow.core.forecast.queue_snapshot import (
    GroupCopy,
    Member,
    QueueSnapshot,
    Waiting,
    ahead_of,
    keys_before,
    size_of,
    waiting_jobs,
)
from gflow.core.forecast.start_limits import Floors, earliest_start
from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.state.eta_calibration import EtaSample, wait_of
from gflow.core.state.queue import ReadyQueue
from gflow.core.state.state import State

# Tolerance added to the latest start, in seconds.
SLACK_S = 600.0


class Start(msgspec.Struct, frozen=True):
    """The ETA of a job: it starts between `earliest` and `latest` with a probability of 0.8.

    The earliest start of a job that waits for resources is now. Times are on the boot clock here;
    `wait_report.wait_report` converts them to the wall clock.
    """

    expected: float
    earliest: float
    latest: float


class EtaQuery:
    """A query for the ETA of one waiting job, against a snapshot."""

    def __init__(self, snapshot: QueueSnapshot, job: Member, floors: Floors) -> None:
        self._snapshot, self._job = snapshot, job
        # The job is not expected to start before these (`core.forecast.start_limits`).
        self._floors = floors
        self._with_gpus = job[1].shape.gpus > 0
        self._at_worst: QueueSimulation | None = None
        # Only until there are enough outcomes.
        self._expected: QueueSimulation | None = None
        # How many jobs come before it, and how long they take on the whole machine, in seconds.
        self._ahead, self._work = 0, 0.0

    def compute(self) -> None:
        """Run the simulations, which takes long. Reads only the snapshot: any thread can do it."""
        if self.is_answered:
            return
        for group, count in ahead_of(self._snapshot, self._job):
            self._ahead += count
            self._work += count * group.length * size_of(group.shape, self._with_gpus)
        self._work /= max(1, self._snapshot.pool(self._with_gpus).usable)
        waiting = waiting_jobs(self._snapshot, self._with_gpus, self._job)
        at_worst = self._simulate(AT_WORST, waiting)
        if not self._snapshot.is_learnt[at_worst.is_bounded]:
            self._expected = self._simulate(EXPECTED, waiting)
        self._at_worst = at_worst

    def _simulate(self, lengths: Lengths, waiting: list[Waiting]) -> QueueSimulation:
        simulation = QueueSimulation(self._snapshot, lengths, waiting, with_gpus=self._with_gpus)
        simulation.start_of(self._job[0])
        return simulation

    @property
    def is_answered(self) -> bool:
        return self._at_worst is not None

    @property
    def ahead(self) -> int:
        """How many jobs come before it."""
        self.compute()
        return self._ahead

    @property
    def work_ahead_s(self) -> float:
        """How long the jobs before it take, if they use all of the machine."""
        self.compute()
        return self._work

    def keys_ahead(self) -> list[JobKey]:
        """The jobs that come before it, in order of id."""
        groups = ahead_of(self._snapshot, self._job)
        return sorted(key for group, _ in groups for key in keys_before(group, self._job))

    def start(self) -> Start | None:
        """The ETA; None: it is unknown, or the simulation does not start the job."""
        case, now = self.case(), self._snapshot.now
        if case is None:
            return None
        middle, late = (
            now + wait_of(part, case.worst_s, case.is_bounded)
            for part in self._snapshot.parts[case.is_bounded]
        )
        found = middle if self._expected is None else self._start_in(self._expected)
        if found is None:
            return None
        found = max(found, self._floors.expected)
        return Start(found, now, max(found, late) + SLACK_S)

    def case(self) -> EtaSample | None:
        """A sample for the calibration: the worst-case wait as of now; None: it is unknown."""
        self.compute()
        assert self._at_worst is not None
        worst, now = self._start_in(self._at_worst), self._snapshot.now
        if worst is None or self._floors.at_worst == inf:
            return None
        return EtaSample(now, max(worst, self._floors.at_worst) - now, self._at_worst.is_bounded)

    def _start_in(self, simulation: QueueSimulation) -> float | None:
        """The start in this scenario. If truncated: when the work before it could be done."""
        found = simulation.start_of(self._job[0])
        if simulation.is_truncated:
            found = max(found or simulation.now, self._snapshot.now + simulation.lengths.waiting * self._work)
        return None if found == inf else found


def eta_query_for(state: State, job: Job, snapshot: QueueSnapshot) -> EtaQuery | None:
    """A query for a job that waits for resources; None: it no longer does."""
    group = state.ready.where.get(job.key)
    copy = None if group is None else snapshot.copy_of(group, job.key)
    if group is None or copy is None:
        return None
    return EtaQuery(snapshot, (job.key, copy), earliest_start(state, job, group, snapshot.now))


def eta_query_for_new(state: State, job: Job, snapshot: QueueSnapshot) -> EtaQuery:
    """A query for a job that is not submitted, as if it joined the queue now. Changes nothing."""
    queue = ReadyQueue(state.runtime_estimates, state.machine, by_length=state.policy.order == "shortest")
    queue.bands = state.ready.bands
    group = queue.add(job)
    copy, floors = (
        GroupCopy.of(group, job.key, state.runtime_estimates),
        earliest_start(state, job, group, snapshot.now),
    )
    queue.remove(job)
    return EtaQuery(snapshot, (job.key, copy), floors)


def eta_query_of(state: State, job: Job, now: float) -> EtaQuery:
    """A query for a job that waits for resources, with a new snapshot."""
    found = eta_query_for(state, job, QueueSnapshot.of(state, now))
    assert found is not None
    return found


class Listing:
    """Expected starts for a listing of the queue: of the first jobs, and of a sample of the others."""

    def __init__(self, snapshot: QueueSnapshot) -> None:
        self._snapshot = snapshot

    def starts(self) -> dict[JobKey, float]:
        """Run the simulations, which takes long. Reads only the snapshot: any thread can do it."""
        found: dict[JobKey, float] = {}
        for with_gpus in () if self._snapshot.is_drained else (False, True):
            found |= self._starts(with_gpus)
        return found

    def _starts(self, with_gpus: bool) -> dict[JobKey, float]:
        """The worst case scaled by the median outcome; with too few outcomes, the expected start."""
        snapshot, now = self._snapshot, self._snapshot.now
        waiting = waiting_jobs(snapshot, with_gpus)
        worst = QueueSimulation(snapshot, AT_WORST, waiting, with_gpus=with_gpus)
        if not snapshot.is_learnt[worst.is_bounded]:
            return QueueSimulation(snapshot, EXPECTED, waiting, with_gpus=with_gpus).all()
        part = snapshot.parts[worst.is_bounded][0]
        return {key: now + wait_of(part, start - now, worst.is_bounded) for key, start in worst.all().items()}


def played_starts(state: State, now: float) -> dict[JobKey, float]:
    """Simulated starts of the waiting jobs, if all run as expected and no more are submitted.

    Not calibrated: decisions that rest on these must not change with the outcomes of other jobs.
    """
    snapshot, found = QueueSnapshot.of(state, now), dict[JobKey, float]()
    for with_gpus in (False, True):
        found |= QueueSimulation(
            snapshot, EXPECTED, waiting_jobs(snapshot, with_gpus), with_gpus=with_gpus
        ).all()
    return found
