"""Queue simulation: when each waiting job starts, if no more jobs are submitted.

Only GPUs are simulated (or CPU slots, for jobs without GPUs). Order, start reservations and backfill follow
the scheduler: the rules are those of `core.scheduling.backfill`, and the loops over jobs are repeated here in
numbers alone (docs/adr/0010). `tests/property/test_queue_simulation.py` compares both. There are two
scenarios: jobs run as long as `EXPECTED`, or as long as `AT_WORST`.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from gflow.core.forecast.queue_snapshot import MOST_OLDEST, GroupCopy, QueueSnapshot, Running, Waiting
from gflow.core.ids import JobKey
from gflow.core.scheduling.backfill import QUIET_IDLE_SHARE, assumed_length, caution_for

# How many groups a simulation examines at most, which bounds its cost.
MAX_EXAMINED = 100_000


class Lengths(NamedTuple):
    """How long jobs run in a scenario."""

    # Whether a job with a time limit runs that long. All other jobs follow their expected length.
    by_limits: bool
    # A waiting job runs for this multiple of its expected length.
    waiting: float
    # A running job runs on for at least this multiple of its elapsed time.
    running: float

    def of(self, job: Waiting) -> float:
        return job.time_limit_s if job.time_limit_s and self.by_limits else job.expected * self.waiting


EXPECTED = Lengths(False, 1.0, 1.0)
AT_WORST = Lengths(True, 4.0, 2.0)


class SimulatedReservation:
    """A `StartReservation` in numbers alone."""

    __slots__ = ("_caution", "job", "place", "spare", "start_at")

    def __init__(self, job: Waiting, start_at: float, spare: int, total: int, *, is_due: bool) -> None:
        self.job = job
        # The first place that is bound.
        self.place = job.place[0] + (not is_due)
        self.start_at = start_at
        self.spare = spare
        self._caution = caution_for(job.size / total)

    def allows(self, job: Waiting, now: float) -> bool:
        """See `StartReservation.allows`. It does not matter how long the job runs in this scenario."""
        return job.size <= self.spare or now + self._length(job) <= self.start_at

    def take(self, job: Waiting, now: float) -> None:
        """See `StartReservation.take`."""
        if now + self._length(job) > self.start_at:
            self.spare -= job.size

    def _length(self, job: Waiting) -> float:
        if job.uid != self.job.uid:
            return job.longest_s
        return assumed_length(self._caution, job.limit_s, job.estimated_s)


class QueueSimulation:
    """One simulated schedule. `starts`: the jobs that have started, and when.

    It reads only the snapshot and the list of waiting jobs, so that it may run in a thread.
    """

    def __init__(
        self, snapshot: QueueSnapshot, lengths: Lengths, waiting: list[Waiting], *, with_gpus: bool = True
    ) -> None:
        pool, now = snapshot.pool(with_gpus), snapshot.now
        self._policy = snapshot.policy
        self._size, self._free = pool.size, pool.free
        # GPUs of the machine; and how many are idle, if jobs without GPUs are simulated: as many stay idle.
        self._gpus, self._idle = snapshot.pool(True).size, None if with_gpus else snapshot.pool(True).free
        self.now = now
        self._examined = 0
        self.starts: dict[JobKey, float] = {}
        self.lengths = lengths
        self._ends = [
            (end_of(job, now, lengths), job.gpus if with_gpus else job.cpus) for job in snapshot.running
        ]
        self._waiting = waiting
        # Whether the simulation ended early, at MAX_EXAMINED.
        self.is_truncated = False
        # Whether all jobs have time limits: then the worst case is a bound.
        self.is_bounded = all(job.time_limit_s for job in snapshot.running) and all(
            one.time_limit_s for one in waiting
        )
        # The waiting jobs of each group, groups in the order of their next jobs. The next job of a group is
        # last in its list.
        self._groups: list[list[Waiting]] = []
        # Place (first one first) -> jobs; the one that has waited longest is last.
        self._oldest: dict[int, list[Waiting]] = {}
        self._reservations: list[SimulatedReservation] = []

    def _build_order(self) -> None:
        """Sort the waiting jobs into `_groups` and `_oldest`."""
        waiting, self._waiting = self._waiting, []
        heapq.heapify(self._ends)
        groups: dict[GroupCopy, list[Waiting]] = {}
        for one in sorted(waiting, key=lambda one: one.place, reverse=True):
            groups.setdefault(one.group, []).append(one)
        self._groups = sorted(groups.values(), key=_next_place)
        for one in sorted(waiting, key=lambda one: (-one.place[0], one.since, one.key), reverse=True):
            self._oldest.setdefault(one.place[0], []).append(one)

    def start_of(self, key: JobKey) -> float | None:
        """When this job starts; None: never in this simulation."""
        while key not in self.starts and self._advance():
            pass
        return self.starts.get(key)

    def all(self) -> dict[JobKey, float]:
        """When each job starts, as far as simulated."""
        while self._advance():
            pass
        return self.starts

    def _advance(self) -> bool:
        """Start all jobs that can start now, then go to the next end; False: the simulation is over."""
        if self._waiting:
            self._build_order()
        if self._examined > MAX_EXAMINED:
            self.is_truncated = True
            return False
        self._reservations = self._reservations_due()
        while self._start_all():
            pass
        if not self._ends or self._ends[0][0] == inf or not self._groups:
            return False
        self.now = max(self.now, self._ends[0][0])
        while self._ends and self._ends[0][0] <= self.now:
            self._free += heapq.heappop(self._ends)[1]
        return True

    def _start_all(self) -> bool:
        """One pass in order; True: the reservations changed, so that another pass is needed."""
        groups, index = self._groups, 0
        while self._free and (index := self._first_startable(index)) < len(groups):
            jobs = groups.pop(index)
            job = jobs.pop()
            if jobs:
                insort(groups, jobs, lo=index, key=_next_place)
            if self._start(job):
                return True
        return False

    def _first_startable(self, index: int) -> int:
        """The first group from this index on whose next job may start; the number of groups: none."""
        free, groups = self._free, self._groups
        for place in range(index, len(groups)):
            job = groups[place][-1]
            if job.size <= free and self._may_backfill(job):
                break
        else:
            place = len(groups)
        self._examined += place - index + 1
        return place

    def _may_backfill(self, job: Waiting) -> bool:
        """See `core.scheduling.backfill.may_backfill`."""
        backfill = self._policy.backfill
        for reservation in self._reservations:
            if reservation.job is job:
                return True
            if job.place[0] >= reservation.place and not (backfill and reservation.allows(job, self.now)):
                return False
        return True

    def _start(self, job: Waiting) -> bool:
        """Start a job; whether reservations changed that may have blocked others. See `scheduler`."""
        before = self._reservations
        self.starts[job.key] = self.now
        self._free -= job.size
        heapq.heappush(self._ends, (self.now + self.lengths.of(job) * job.count, job.size))
        had_reservation = False
        for reservation in before:
            reservation.take(job, self.now)
            had_reservation = had_reservation or reservation.job is job
        if before and not had_reservation:
            return False
        self._reservations = self._reservations_due()
        return bool(before)

    def _is_quiet(self) -> bool:
        """See `core.scheduling.backfill.is_quiet`, which is too frequent for a call of a common function."""
        idle = self._free if self._idle is None else self._idle
        return self._gpus > 0 and idle >= QUIET_IDLE_SHARE * self._gpus

    def _reservations_due(self) -> list[SimulatedReservation]:
        """Start reservations of the oldest jobs; see `core.scheduling.backfill.reservations_due`."""
        found: list[SimulatedReservation] = []
        if self._policy.patience < 0:
            return found
        is_quiet = self._is_quiet()
        due = 0
        for jobs in self._oldest.values():
            while jobs and jobs[-1].key in self.starts:
                jobs.pop()
        last = max((place for place, jobs in self._oldest.items() if jobs), default=0)
        for place, jobs in self._oldest.items():
            made: list[SimulatedReservation] = []
            for one in self._heads(jobs):
                if due + len(made) == self._policy.max_start_reservations:
                    break
                if self.now - one.since < (one.quiet_patience_s if is_quiet else one.patience_s):
                    break
                if (reservation := self._reserve(one, is_due=True)) is not None:
                    made.append(reservation)
            due += len(made)
            if not made and place < last and jobs:
                first = self._reserve(next(self._heads(jobs)), is_due=False)
                made += [] if first is None else [first]
            found += made
        return found

    def _reserve(self, job: Waiting, *, is_due: bool) -> SimulatedReservation | None:
        free, at = self._free, self.now
        if free < job.size:
            for end, size in sorted(self._ends):
                if free >= job.size and end > at:
                    break
                free, at = free + size, end
        if free < job.size or at == inf:
            return None
        return SimulatedReservation(job, max(at, self.now), free - job.size, self._size, is_due=is_due)

    def _heads(self, jobs: list[Waiting]) -> Iterator[Waiting]:
        """The head of each group, the one that has waited longest first."""
        groups: set[GroupCopy] = set()
        for one in reversed(jobs):
            if one.key not in self.starts and one.group not in groups:
                groups.add(one.group)
                yield one
                if len(groups) == MOST_OLDEST:
                    return


def _next_place(jobs: list[Waiting]) -> tuple[int, float, JobKey]:
    """Sort key of a group: the place of its next job in the order of start."""
    return jobs[-1].place


def end_of(job: Running, now: float, lengths: Lengths) -> float:
    """When a running job ends in this scenario."""
    if job.is_stopping:
        return now
    last = max(now, job.started + job.time_limit_s) if job.time_limit_s else inf
    if job.time_limit_s and lengths.by_limits:
        return last
    by_age = now + lengths.running * max(0.0, now - job.started)
    return min(last, max(by_age, job.expected_end))
