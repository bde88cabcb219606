"""The queue played forward on paper: who starts when, if nothing more comes.

Only GPUs are counted (or CPU slots, for jobs that ask for no GPU). Order, promises and who may pass are the
scheduler's. Two stories can be told: everything takes as long as it is `EXPECTED` to, or `AT_WORST`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from gflow.core.forecast.queue_snapshot import GroupCopy, QueueSnapshot, Running, Waiting
from gflow.core.ids import JobKey
from gflow.core.scheduling.backfill import MAX_CANDIDATES, QUIET, assumed_length, caution_for

# How often somebody is looked at: that bounds what a story costs.
MOST_LOOKS = 100_000


class Lengths(NamedTuple):
    """How long things take in a story: with a limit that long (or less), without one by what is expected."""

    by_limits: bool
    # How many times its expected length a job that waits takes.
    waiting: float
    # How many times as long as it has run by now one that runs will go on at least: what is old lives long.
    running: float

    def of(self, job: Waiting) -> float:
        return job.limit if job.limit and self.by_limits else job.expected * self.waiting


EXPECTED = Lengths(False, 1.0, 1.0)
AT_WORST = Lengths(True, 4.0, 2.0)


class SimulatedReservation:
    """As `core.scheduling.backfill.Promise`, in numbers alone."""

    __slots__ = ("_caution", "job", "spare", "until")

    def __init__(self, job: Waiting, until: float, spare: int, total: int) -> None:
        self.job = job
        self.until = until
        self.spare = spare
        self._caution = caution_for(job.size / total)

    def is_in_time(self, job: Waiting, now: float) -> bool:
        """Whether a job is taken for one that is over by then, however long it takes in this story."""
        return now + assumed_length(self._caution, job.limit_s, job.estimated_s) <= self.until


class QueueSimulation:
    """One story. `starts` has who has started, with when."""

    def __init__(
        self, snapshot: QueueSnapshot, lengths: Lengths, who: list[Waiting], *, with_gpus: bool = True
    ) -> None:
        pool, now = snapshot.pool(with_gpus), snapshot.now
        self._policy = snapshot.policy
        self._total, self._free = pool.usable, pool.free
        self.now = now
        self._looks = 0
        self.starts: dict[JobKey, float] = {}
        self.lengths = lengths
        self._ends = [
            (_end(job, now, lengths), job.gpus if with_gpus else job.cpus) for job in snapshot.running
        ]
        self._who = who
        # Whether so much happens that not all of it is played.
        self.is_cut = False
        # Whether time limits alone decide how long all of this takes.
        self.is_bounded = all(job.limit for job in snapshot.running) and all(one.limit for one in who)
        # Those alike, in order; of them the first is the next, and lies last.
        self._alike: list[list[Waiting]] = []
        # By precedence, the highest first: who has waited longest last.
        self._by_age: dict[int, list[Waiting]] = {}
        self._promises: list[SimulatedReservation] = []

    def _line_up(self) -> None:
        """Everybody to their place."""
        who, self._who = self._who, []
        heapq.heapify(self._ends)
        alike: dict[GroupCopy, list[Waiting]] = {}
        for one in sorted(who, key=lambda one: one.place, reverse=True):
            alike.setdefault(one.group, []).append(one)
        # By the first of each.
        self._alike = sorted(alike.values(), key=lambda line: line[-1].place)
        for one in sorted(who, key=lambda one: (one.precedence, one.since, one.key), reverse=True):
            self._by_age.setdefault(one.precedence, []).append(one)

    def start_of(self, key: JobKey) -> float | None:
        """When this one starts; None: not in sight."""
        while key not in self.starts and self._turn():
            pass
        return self.starts.get(key)

    def all(self) -> dict[JobKey, float]:
        """When each starts, as far as that is played."""
        while self._turn():
            pass
        return self.starts

    def _turn(self) -> bool:
        """All that starts now, and on to the next end; False: there is nothing more to see."""
        if self._who:
            self._line_up()
        if self._looks > MOST_LOOKS:
            self.is_cut = True
            return False
        self._promises = self._due()
        while self._sweep():
            pass
        self._alike = [line for line in self._alike if line]
        if not self._ends or self._ends[0][0] == inf or not self._alike:
            return False
        self.now = max(self.now, self._ends[0][0])
        while self._ends and self._ends[0][0] <= self.now:
            self._free += heapq.heappop(self._ends)[1]
        return True

    def _sweep(self) -> bool:
        """Once over all, in order; True: start again, because one started whose promise kept others."""
        for line in self._alike:
            if not self._free:
                break
            self._looks += 1
            while line and line[-1].size <= self._free and self._may_pass(line[-1]):
                if self._start(line.pop()):
                    return True
        return False

    def _may_pass(self, job: Waiting) -> bool:
        for reservation in self._promises:
            if reservation.job is job:
                return True
            if job.precedence > reservation.job.precedence:
                continue
            in_time = self._policy.backfill and reservation.is_in_time(job, self.now)
            if not in_time and (not self._policy.backfill or job.size > reservation.spare):
                return False
        return True

    def _start(self, job: Waiting) -> bool:
        """It starts; whether that may let others pass whom a promise kept."""
        self.starts[job.key] = self.now
        self._free -= job.size
        heapq.heappush(self._ends, (self.now + self.lengths.of(job) * job.count, job.size))
        for reservation in self._promises:
            if not reservation.is_in_time(job, self.now):
                reservation.spare -= job.size
        had_reservation = any(reservation.job is job for reservation in self._promises)
        if had_reservation or not self._promises:
            self._promises = self._due()
        return had_reservation

    def _due(self) -> list[SimulatedReservation]:
        """Promises to those who have waited longest, if that is long enough; see
        `core.scheduling.backfill.due`."""
        found: list[SimulatedReservation] = []
        if self._policy.patience < 0:
            return found
        is_quiet = self._policy.patience > 0 and self._free >= QUIET * self._total
        for line in self._by_age.values():
            while line and line[-1].key in self.starts:
                line.pop()
            for one in self._heads(line):
                if self.now - one.since < (one.quiet_due if is_quiet else one.due):
                    break
                if (reservation := self._promise(one)) is not None:
                    found.append(reservation)
                    if len(found) == self._policy.promises:
                        return found
        return found

    def _promise(self, job: Waiting) -> SimulatedReservation | None:
        free, at = self._free, self.now
        if free < job.size:
            for end, size in sorted(self._ends):
                if free >= job.size and end > at:
                    break
                free, at = free + size, end
        if free < job.size or at == inf:
            return None
        return SimulatedReservation(job, max(at, self.now), free - job.size, self._total)

    def _heads(self, line: list[Waiting]) -> Iterator[Waiting]:
        """The first of each group, who has waited longest first."""
        groups: set[GroupCopy] = set()
        for one in reversed(line):
            if one.key not in self.starts and one.group not in groups:
                groups.add(one.group)
                yield one
                if len(groups) == MAX_CANDIDATES:
                    return


def _end(job: Running, now: float, lengths: Lengths) -> float:
    """When a running job is over in this story."""
    if job.is_stopping:
        return now
    last = max(now, job.started + job.limit) if job.limit else inf
    if job.limit and lengths.by_limits:
        return last
    old = now + lengths.running * max(0.0, now - job.started)
    return min(last, max(old, job.expected_end))
