"""The queue played forward on paper: who starts when, if nothing more comes.

Only GPUs are counted (or CPU slots, for jobs that ask for no GPU). Order, promises and who may pass are the
scheduler's. Two stories can be told: everything takes as long as it is `EXPECTED` to, or `AT_WORST`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.lanes import EVERYTHING, Group
from gflow.core.model import Job, Shape
from gflow.core.promise import MOST_ASKED, QUIET, times_of
from gflow.core.queue import Walk
from gflow.core.state import State

# How many of those who wait are looked at, and how often somebody is: that bounds what a story costs.
MOST_WAITING, MOST_LOOKS = 1000, 50_000


class Lengths(NamedTuple):
    """How long things take in a story: with a limit that long (or less), without one by what is expected."""

    by_limits: bool
    # How many times its expected length a job that waits takes.
    waiting: float
    # How many times as long as it has run by now one that runs will go on at least: what is old lives long.
    running: float


EXPECTED = Lengths(False, 1.0, 1.0)
AT_WORST = Lengths(True, 4.0, 2.0)


class Waiting:
    """One that waits."""

    __slots__ = (
        "due",
        "group",
        "key",
        "length",
        "place",
        "quiet_due",
        "since",
        "size",
        "standing",
        "started",
    )

    def __init__(self, state: State, key: JobKey, group: Group, size: int, lengths: Lengths) -> None:
        self.key = key
        self.group = group
        self.size = size
        self.place = (group.lane.place, group.rank, key)
        self.standing = (group.key.priority, not group.key.preemptible)
        self.since = group.members[key]
        limit = group.key.limit_s
        self.length = limit if limit and lengths.by_limits else group.length * lengths.waiting
        self.due, self.quiet_due = (
            group.length * times_of(state, group.key.shape, is_quiet) for is_quiet in (False, True)
        )
        self.started = False


class Promised:
    """As `core.promise.Promise`, in numbers alone."""

    __slots__ = ("job", "spare", "until")

    def __init__(self, job: Waiting, until: float, spare: int) -> None:
        self.job = job
        self.until = until
        self.spare = spare


class Play:
    """One story. `starts` has who has started, with when."""

    def __init__(
        self, state: State, wall: float, lengths: Lengths, *, with_gpus: bool = True, also: Job | None = None
    ) -> None:
        machine = state.machine
        self._policy = state.policy
        self._total = len(machine.usable) if with_gpus else machine.cpus
        self._free = len(machine.idle) if with_gpus else machine.free_cpus
        self.now = wall
        self._looks = 0
        self.starts: dict[JobKey, float] = {}
        # How many times as long as expected those take who wait.
        self.longer = lengths.waiting
        self._ends = [
            (_end(state, job, wall, lengths), size_of(job.spec.shape, with_gpus))
            for job in state.running.values()
        ]
        heapq.heapify(self._ends)
        self._line = list(self._waiting(state, with_gpus, lengths, also))
        # Whether the one who is asked about stands so far back that not all before it are played.
        self.is_cut = also is not None and len(self._line) > MOST_WAITING and self._line[-1].key == also.key
        # Whether time limits alone decide how long all of this takes.
        self.is_bounded = all(job.spec.time_limit_s for job in state.running.values()) and all(
            state.jobs[one.key].spec.time_limit_s for one in self._line
        )
        # Those alike, in order; of them the first is the next, and lies last.
        self._alike: list[list[Waiting]] = []
        alike: dict[Group, list[Waiting]] = {}
        for one in sorted(self._line, key=lambda one: one.place):
            if one.group not in alike:
                alike[one.group] = []
                self._alike.append(alike[one.group])
            alike[one.group].append(one)
        for line in self._alike:
            line.reverse()
        # By priority, the highest first: who has waited longest last.
        self._by_age: dict[int, list[Waiting]] = {}
        for one in sorted(self._line, key=lambda one: (one.standing[0], one.since, one.key), reverse=True):
            self._by_age.setdefault(one.standing[0], []).append(one)
        self._promises: list[Promised] = []

    def _waiting(
        self, state: State, with_gpus: bool, lengths: Lengths, also: Job | None
    ) -> Iterator[Waiting]:
        seen = set()
        for key, group in _those_who_wait(state, with_gpus, also):
            size = size_of(group.key.shape, with_gpus)
            if key not in seen and 0 < size <= self._total:
                seen.add(key)
                yield Waiting(state, key, group, size, lengths)

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
        if self._looks > MOST_LOOKS:
            self.is_cut = True  # too much happens before it
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
        for promise in self._promises:
            if promise.job is job:
                return True
            if job.standing > promise.job.standing:
                continue
            in_time = self._policy.backfill and self.now + job.length <= promise.until
            if not in_time and (not self._policy.backfill or job.size > promise.spare):
                return False
        return True

    def _start(self, job: Waiting) -> bool:
        """It starts; whether that may let others pass whom a promise kept."""
        job.started = True
        self.starts[job.key] = self.now
        self._free -= job.size
        heapq.heappush(self._ends, (self.now + job.length, job.size))
        for promise in self._promises:
            if self.now + job.length > promise.until:
                promise.spare -= job.size
        was_promised = any(promise.job is job for promise in self._promises)
        if was_promised or not self._promises:
            self._promises = self._due()
        return was_promised

    def _due(self) -> list[Promised]:
        """Promises to those who have waited longest, if that is long enough; see `core.promise.due`."""
        found: list[Promised] = []
        if self._policy.patience < 0:
            return found
        is_quiet = self._policy.patience > 0 and self._free >= QUIET * self._total
        for line in self._by_age.values():
            while line and line[-1].started:
                line.pop()
            for one in _heads(line):
                if self.now - one.since < (one.quiet_due if is_quiet else one.due):
                    break
                if (promise := self._promise(one)) is not None:
                    found.append(promise)
                    if len(found) == self._policy.promises:
                        return found
        return found

    def _promise(self, job: Waiting) -> Promised | None:
        free, at = self._free, self.now
        if free < job.size:
            for end, size in sorted(self._ends):
                if free >= job.size and end > at:
                    break
                free, at = free + size, end
        return Promised(job, max(at, self.now), free - job.size) if free >= job.size and at < inf else None


def _heads(line: list[Waiting]) -> Iterator[Waiting]:
    """The first of each group, who has waited longest first."""
    groups: set[Group] = set()
    for one in reversed(line):
        if not one.started and one.group not in groups:
            groups.add(one.group)
            yield one
            if len(groups) == MOST_ASKED:
                return


def size_of(shape: Shape, with_gpus: bool) -> int:
    return shape.gpus if with_gpus else shape.cpus


def _end(state: State, job: Job, wall: float, lengths: Lengths) -> float:
    """When a running job is over in this story."""
    assert job.started_at is not None
    if job.stopping:
        return wall
    limit = job.spec.time_limit_s
    last = max(wall, job.started_at + limit) if limit else inf
    if limit and lengths.by_limits:
        return last
    old = wall + lengths.running * max(0.0, wall - job.started_at)
    return min(last, max(old, state.expected_end(job, wall)))


def _those_who_wait(state: State, with_gpus: bool, also: Job | None) -> Iterator[tuple[JobKey, Group]]:
    """The first in order, those who have waited longest, and the one who is asked about."""
    walk, told = Walk(state.ready), 0
    while told < MOST_WAITING and (key := walk.next(EVERYTHING)) is not None:
        job = state.jobs[key]
        group = state.ready.group_of(job)
        walk.skip(job)
        if with_gpus == (group.key.shape.gpus > 0):
            for member in islice(group.members, MOST_WAITING - told):
                told += 1
                yield member, group
    walk.close()
    for (_, gpus), ages in state.ready.ages.items():
        if gpus == with_gpus:
            for place in range(MOST_ASKED):
                age = ages.at(place)
                if age is None:
                    break
                yield age[1], age[3]
    if also is not None:
        yield also.key, state.ready.group_of(also)
