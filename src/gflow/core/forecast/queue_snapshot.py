"""A bounded snapshot of the queue for the simulation (`core.forecast.queue_simulation`).

Other threads may read it. Only GPUs are counted (or CPU slots, for jobs without GPUs). The cost of a
simulation does not grow with the queue: the first jobs are simulated one by one, and a sample represents the
others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from gflow.core.ids import JobKey
from gflow.core.key_table import KeyTable
from gflow.core.model import Job
from gflow.core.resources import Shape
from gflow.core.scheduling.backfill import patience_for
from gflow.core.state.queue_index import Group
from gflow.core.state.runtime_estimates import RuntimeEstimates
from gflow.core.state.state import State

# How many waiting jobs are simulated one by one, and the size of the sample that represents the others.
MOST_NEAR, MOST_FAR = 1000, 1000
# How many groups of each place are simulated because their jobs have waited longest.
MOST_OLDEST = 20


class GroupCopy(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A copy of a group of the queue; see `Group`.

    It has no reference cycles. There are many, so that the garbage collector does not track them.
    """

    head: JobKey
    members: KeyTable[float]
    shape: Shape
    place: int
    sort_key: float
    precedence: int
    time_limit_s: int
    length: float
    limit_s: float
    estimated_s: float
    patience_basis_s: float
    # How long such a job may run, which counts against reservations of other users.
    longest_s: float
    uid: int

    @classmethod
    def of(cls, group: Group, head: JobKey, estimates: RuntimeEstimates) -> GroupCopy:
        return cls(
            head,
            group.members.copy(),
            group.shape,
            group.bucket.place,
            group.sort_key,
            group.precedence,
            group.key.limit_s,
            group.length,
            group.limit_s,
            group.estimated_s,
            group.patience_basis_s,
            estimates.longest(group.key.limit_s, group.batch),
            group.key.uid,
        )

    @property
    def since(self) -> float:
        return self.members[self.head]

    @property
    def order(self) -> tuple[int, float, JobKey]:
        """Sort key: the order of start."""
        return self.place, self.sort_key, self.head


class Pool(NamedTuple):
    """GPUs, or CPU slots: how many exist, how many jobs may get, how many are free."""

    size: int
    usable: int
    free: int


class Running(NamedTuple):
    """A running job: start and expected end (boot clock), time limit (0: none), and its resources."""

    started: float
    expected_end: float
    time_limit_s: float
    is_stopping: bool
    gpus: int
    cpus: int

    @classmethod
    def of(cls, state: State, job: Job, now: float) -> Running:
        return cls(
            job.started_boot or 0.0,
            state.running.expected_end(job, now),
            job.spec.time_limit_s,
            job.stopping is not None,
            job.spec.shape.gpus,
            job.spec.shape.cpus,
        )


class QueueSnapshot:
    """A copy of the queue for forecasts: any thread may read it while the queue changes.

    The copy can be made in parts (`take`). Changes made meanwhile may or may not be in it, which is good
    enough for a forecast.
    """

    def __init__(self, state: State, now: float) -> None:
        machine, calibration = state.machine, state.eta_calibration
        self.now, self.policy, self.is_drained = now, state.policy, machine.is_drained
        self._pools = {
            True: Pool(len(machine.gpus), len(machine.usable), len(machine.idle)),
            False: Pool(machine.cpus, machine.cpus, machine.free_cpus),
        }
        self.running = [Running.of(state, job, now) for job in state.running.values()]
        # By whether all jobs have time limits: whether there are enough ETA samples, and their percentiles
        # (`core.state.eta_calibration`).
        self.is_learnt = {is_bounded: calibration.is_learnt(is_bounded) for is_bounded in (False, True)}
        self.parts = {is_bounded: calibration.parts(is_bounded, now) for is_bounded in (False, True)}
        self._estimates = state.runtime_estimates
        self._copies: dict[Group, GroupCopy] = {}
        self._left = iter(list(state.ready.groups.values()))
        self._near: dict[bool, list[tuple[JobKey, GroupCopy]]] = {}

    @classmethod
    def of(cls, state: State, now: float) -> QueueSnapshot:
        """A complete snapshot, made in one call."""
        made = cls(state, now)
        made.take(len(state.ready.groups))
        return made

    def take(self, most: int) -> bool:
        """Copy at most `most` more groups; whether more may be left."""
        some = list(islice(self._left, most))
        for group in some:
            self.add(group)
        return len(some) == most

    def add(self, group: Group) -> GroupCopy | None:
        """Copy this group as it is now; None: it is no longer in the queue."""
        head = group.head()
        if head is None:
            return None
        copy = self._copies[group] = GroupCopy.of(group, head, self._estimates)
        return copy

    def copy_of(self, group: Group, key: JobKey) -> GroupCopy | None:
        """The copy of this job's group, made now if the job was submitted after the snapshot."""
        found = self._copies.get(group)
        return found if found is not None and key in found.members else self.add(group)

    def pool(self, with_gpus: bool) -> Pool:
        return self._pools[with_gpus]

    def groups(self, with_gpus: bool) -> list[GroupCopy]:
        return [group for group in list(self._copies.values()) if with_gpus == (group.shape.gpus > 0)]

    def near(self, with_gpus: bool) -> list[tuple[JobKey, GroupCopy]]:
        """The first jobs in order, and those that have waited longest; some appear twice. Cached."""
        found = self._near.get(with_gpus)
        if found is None:
            found = self._near[with_gpus] = list(_near(self.groups(with_gpus)))
        return found


class Waiting:
    """A waiting job, or one that represents several. Immutable: a thread may read it."""

    __slots__ = (
        "count", "estimated_s", "expected", "group", "key", "limit_s", "longest_s", "patience_s", "place",
        "precedence", "quiet_patience_s", "since", "size", "time_limit_s", "uid",
    )  # fmt: skip

    def __init__(
        self, key: JobKey, group: GroupCopy, size: int, count: int, patience: tuple[float, float]
    ) -> None:
        self.key = key
        self.group = group
        self.size = size
        # How many jobs it represents: they run one after the other.
        self.count = count
        self.place = (group.place, group.sort_key, key)
        self.precedence = group.precedence
        self.since = group.members[key]
        self.time_limit_s = group.time_limit_s
        self.expected = group.length
        self.limit_s, self.estimated_s = group.limit_s, group.estimated_s
        self.longest_s, self.uid = group.longest_s, group.uid
        # After which wait it gets a start reservation, and after which if most of the machine is idle.
        self.patience_s, self.quiet_patience_s = patience


# A job, and its group.
Member = tuple[JobKey, GroupCopy]


def waiting_jobs(snapshot: QueueSnapshot, with_gpus: bool, also: Member | None = None) -> list[Waiting]:
    """The jobs to simulate that wait for GPUs, or for CPU slots alone. Each once; `also` always."""
    pool, patience = snapshot.pool(with_gpus), snapshot.policy.patience
    patience_s: dict[GroupCopy, tuple[float, float]] = {}
    found = []
    for key, group, count in _representatives(snapshot, with_gpus, also):
        size = size_of(group.shape, with_gpus)
        if 0 < size <= pool.usable:
            if group not in patience_s:
                busy, idle = (patience_for(patience, size / pool.size, quiet) for quiet in (False, True))
                patience_s[group] = group.patience_basis_s * busy, group.patience_basis_s * idle
            found.append(Waiting(key, group, size, count, patience_s[group]))
    return found


def _representatives(
    snapshot: QueueSnapshot, with_gpus: bool, also: Member | None
) -> Iterator[tuple[JobKey, GroupCopy, int]]:
    """The jobs to simulate, each with the number of jobs that it represents."""
    seen: set[JobKey] = set()
    for key, group in ([also] if also else []) + snapshot.near(with_gpus):
        if key not in seen:
            seen.add(key)
            yield key, group, 1
    groups = snapshot.groups(with_gpus)
    each = 1 + max(0, sum(len(group.members) for group in groups) - len(seen)) // MOST_FAR
    first = 0
    for group in groups:
        for key in islice(group.members, first, None, each):
            if key not in seen:
                yield key, group, each
        first = (first - len(group.members)) % each


def _near(groups: list[GroupCopy]) -> Iterator[Member]:
    taken = 0
    for group in heapq.nsmallest(MOST_NEAR, groups, key=lambda group: group.order):
        for member in islice(group.members, MOST_NEAR - taken):
            taken += 1
            yield member, group
        if taken == MOST_NEAR:
            break
    by_place: dict[int, list[GroupCopy]] = {}
    for group in groups:
        by_place.setdefault(group.place, []).append(group)
    for same in by_place.values():
        for group in heapq.nsmallest(MOST_OLDEST, same, key=lambda group: (group.since, group.head)):
            yield group.head, group


def keys_before(group: GroupCopy, job: Member) -> Iterator[JobKey]:
    """The jobs of this group, which `ahead_of` has found, that come before a job."""
    return (other for other in group.members if group is not job[1] or other < job[0])


def ahead_of(snapshot: QueueSnapshot, job: Member) -> Iterator[tuple[GroupCopy, int]]:
    """The jobs before a job in the order of start: each group, and how many of its jobs."""
    own = job[1]
    mine = own.order
    for with_gpus in (False, True):
        for group in snapshot.groups(with_gpus):
            if group is own:
                before = sum(1 for _ in keys_before(group, job))
                if before:
                    yield group, before
            elif group.order < mine:
                yield group, len(group.members)


def size_of(shape: Shape, with_gpus: bool) -> int:
    return shape.gpus if with_gpus else shape.cpus
