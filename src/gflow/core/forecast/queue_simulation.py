"""Queue simulation: when each waiting job starts, if no more jobs are submitted.

Only GPUs are simulated (or CPU slots, for jobs without GPUs). Order, start reservations and backfill follow
the scheduler. There are two scenarios: jobs run as long as `EXPECTED`, or as long as `AT_WORST`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from gflow.core.forecast.queue_snapshot import GroupCopy, QueueSnapshot, Running, Waiting
from gflow.core.ids import JobKey
from gflow.core.scheduling.backfill import MAX_CANDIDATES, QUIET, assumed_length, caution_for

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

    __slots__ = ("_caution", "job", "spare", "start_at")

    def __init__(self, job: Waiting, start_at: float, spare: int, total: int) -> None:
        self.job = job
        self.start_at = start_at
        self.spare = spare
        self._caution = caution_for(job.size / total)

    def is_in_time(self, job: Waiting, now: float) -> bool:
        """Whether backfill assumes that the job ends by `start_at`, however long it runs in this scenario."""
        return now + assumed_length(self._caution, job.limit_s, job.estimated_s) <= self.start_at


class QueueSimulation:
    """One simulated schedule. `starts`: the jobs that have started, and when.

    It reads only the snapshot and the list of waiting jobs, so that it may run in a thread.
    """

    def __init__(
        self, snapshot: QueueSnapshot, lengths: Lengths, waiting: list[Waiting], *, with_gpus: bool = True
    ) -> None:
        pool, now = snapshot.pool(with_gpus), snapshot.now
        self._policy = snapshot.policy
        self._total, self._free = pool.usable, pool.free
        self.now = now
        self._examined = 0
        self.starts: dict[JobKey, float] = {}
        self.lengths = lengths
        self._ends = [
            (_end(job, now, lengths), job.gpus if with_gpus else job.cpus) for job in snapshot.running
        ]
        self._waiting = waiting
        # Whether the simulation ended early, at MAX_EXAMINED.
        self.is_truncated = False
        # Whether all jobs have time limits: then the worst case is a bound.
        self.is_bounded = all(job.time_limit_s for job in snapshot.running) and all(
            one.time_limit_s for one in waiting
        )
        # The waiting jobs of each group, groups in order of start. The next job of a group is last in its
        # list.
        self._groups: list[list[Waiting]] = []
        # Precedence (highest first) -> jobs; the one that has waited longest is last.
        self._oldest: dict[int, list[Waiting]] = {}
        self._reservations: list[SimulatedReservation] = []

    def _build_order(self) -> None:
        """Sort the waiting jobs into `_groups` and `_oldest`."""
        waiting, self._waiting = self._waiting, []
        heapq.heapify(self._ends)
        groups: dict[GroupCopy, list[Waiting]] = {}
        for one in sorted(waiting, key=lambda one: one.place, reverse=True):
            groups.setdefault(one.group, []).append(one)
        # In the order of their next jobs.
        self._groups = sorted(groups.values(), key=lambda jobs: jobs[-1].place)
        for one in sorted(waiting, key=lambda one: (one.precedence, one.since, one.key), reverse=True):
            self._oldest.setdefault(one.precedence, []).append(one)

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
        self._groups = [jobs for jobs in self._groups if jobs]
        if not self._ends or self._ends[0][0] == inf or not self._groups:
            return False
        self.now = max(self.now, self._ends[0][0])
        while self._ends and self._ends[0][0] <= self.now:
            self._free += heapq.heappop(self._ends)[1]
        return True

    def _start_all(self) -> bool:
        """One pass in order; True: a job with a reservation started, so that another pass is needed."""
        for jobs in self._groups:
            if not self._free:
                break
            self._examined += 1
            while jobs and jobs[-1].size <= self._free and self._may_backfill(jobs[-1]):
                if self._start(jobs.pop()):
                    return True
        return False

    def _may_backfill(self, job: Waiting) -> bool:
        for reservation in self._reservations:
            if reservation.job is job:
                return True
            if job.precedence > reservation.job.precedence:
                continue
            in_time = self._policy.backfill and reservation.is_in_time(job, self.now)
            if not in_time and (not self._policy.backfill or job.size > reservation.spare):
                return False
        return True

    def _start(self, job: Waiting) -> bool:
        """Start a job; whether it had a reservation, which may have blocked others."""
        self.starts[job.key] = self.now
        self._free -= job.size
        heapq.heappush(self._ends, (self.now + self.lengths.of(job) * job.count, job.size))
        for reservation in self._reservations:
            if not reservation.is_in_time(job, self.now):
                reservation.spare -= job.size
        had_reservation = any(reservation.job is job for reservation in self._reservations)
        if had_reservation or not self._reservations:
            self._reservations = self._reservations_due()
        return had_reservation

    def _reservations_due(self) -> list[SimulatedReservation]:
        """Start reservations of the oldest jobs; see `core.scheduling.backfill.reservations_due`."""
        found: list[SimulatedReservation] = []
        if self._policy.patience < 0:
            return found
        is_quiet = self._policy.patience > 0 and self._free >= QUIET * self._total
        for jobs in self._oldest.values():
            while jobs and jobs[-1].key in self.starts:
                jobs.pop()
            for one in self._heads(jobs):
                if self.now - one.since < (one.quiet_patience_s if is_quiet else one.patience_s):
                    break
                if (reservation := self._reserve(one)) is not None:
                    found.append(reservation)
                    if len(found) == self._policy.max_start_reservations:
                        return found
        return found

    def _reserve(self, job: Waiting) -> SimulatedReservation | None:
        free, at = self._free, self.now
        if free < job.size:
            for end, size in sorted(self._ends):
                if free >= job.size and end > at:
                    break
                free, at = free + size, end
        if free < job.size or at == inf:
            return None
        return SimulatedReservation(job, max(at, self.now), free - job.size, self._total)

    def _heads(self, jobs: list[Waiting]) -> Iterator[Waiting]:
        """The head of each group, the one that has waited longest first."""
        groups: set[GroupCopy] = set()
        for one in reversed(jobs):
            if one.key not in self.starts and one.group not in groups:
                groups.add(one.group)
                yield one
                if len(groups) == MAX_CANDIDATES:
                    return


def _end(job: Running, now: float, lengths: Lengths) -> float:
    """When a running job ends in this scenario."""
    if job.is_stopping:
        return now
    last = max(now, job.started + job.time_limit_s) if job.time_limit_s else inf
    if job.time_limit_s and lengths.by_limits:
        return last
    by_age = now + lengths.running * max(0.0, now - job.started)
    return min(last, max(by_age, job.expected_end))
