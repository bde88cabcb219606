"""The queue as a forecast needs it (`core.forecast.queue_simulation`): a snapshot that other threads may
read, and who of it is simulated.

Only GPUs are counted (or CPU slots, for jobs that ask for no GPU). However many wait, the cost of a
simulation is bounded: those who come first are taken as they are, and of the others some, who stand for
the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from gflow.core.ids import JobKey
from gflow.core.resources import Shape
from gflow.core.scheduling.backfill import MAX_CANDIDATES, patience_for
from gflow.core.state.queue_index import Group
from gflow.core.state.state import State

# How many of those who wait are taken one by one, and by at most how many the others are represented.
MOST_NEAR, MOST_FAR = 1000, 1000


class GroupCopy(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A group of the queue as it was when it was copied. See `Group`.

    Without reference cycles, and so many that the garbage collector is not to look at them.
    """

    head: JobKey
    members: dict[JobKey, float]
    shape: Shape
    place: int
    sort_key: float
    precedence: int
    limit: int
    length: float
    limit_s: float
    estimated_s: float
    patience_basis_s: float

    @classmethod
    def of(cls, group: Group, head: JobKey) -> GroupCopy:
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
        )

    @property
    def since(self) -> float:
        return self.members[self.head]

    @property
    def order(self) -> tuple[int, float, JobKey]:
        """Sort key: the order of start."""
        return self.place, self.sort_key, self.head


class Pool(NamedTuple):
    """GPUs, or CPU slots: all that there are, those that jobs may get, and those that are free."""

    size: int
    usable: int
    free: int


class Running(NamedTuple):
    """A running job: when it started, when it is expected to end (boot clock), its limit, and what it has."""

    started: float
    expected_end: float
    limit: float
    is_stopping: bool
    gpus: int
    cpus: int


class QueueSnapshot:
    """What forecasts look at, copied: any thread may read it while the queue changes.

    The copy can be made in parts (`take`). What changes meanwhile may be in it or not, and that is as
    good: a forecast is an estimate.
    """

    def __init__(self, state: State, now: float) -> None:
        machine, told = state.machine, state.foretold
        self.now, self.policy, self.is_drained = now, state.policy, machine.is_drained
        self._pools = {
            True: Pool(len(machine.gpus), len(machine.usable), len(machine.idle)),
            False: Pool(machine.cpus, machine.cpus, machine.free_cpus),
        }
        self.running = [
            Running(
                job.started_boot or 0.0,
                state.expected_end(job, now),
                job.spec.time_limit_s,
                job.stopping is not None,
                job.spec.shape.gpus,
                job.spec.shape.cpus,
            )
            for job in state.running.values()
        ]
        # By whether time limits alone decide: whether enough has been learnt, and what
        # (`core.forecast.calibration`).
        self.is_learnt = {is_bounded: told.is_learnt(is_bounded) for is_bounded in (False, True)}
        self.parts = {is_bounded: told.parts(is_bounded, now) for is_bounded in (False, True)}
        self._copies: dict[Group, GroupCopy] = {}
        self._left = iter(list(state.ready.groups.values()))
        self._near: dict[bool, list[tuple[JobKey, GroupCopy]]] = {}

    @classmethod
    def of(cls, state: State, now: float) -> QueueSnapshot:
        """A whole snapshot, in one go."""
        made = cls(state, now)
        made.take(len(state.ready.groups))
        return made

    def take(self, most: int) -> bool:
        """Copy so many more groups; whether there may be others left."""
        some = list(islice(self._left, most))
        for group in some:
            self.add(group)
        return len(some) == most

    def add(self, group: Group) -> GroupCopy | None:
        """Copy this group as it is now; None: it is not in the queue any more."""
        head = group.head()
        if head is None:
            return None
        copy = self._copies[group] = GroupCopy.of(group, head)
        return copy

    def copy_of(self, group: Group, key: JobKey) -> GroupCopy | None:
        """The copy of the group that this job is in, made now if the job came later than the snapshot."""
        found = self._copies.get(group)
        return found if found is not None and key in found.members else self.add(group)

    def pool(self, with_gpus: bool) -> Pool:
        return self._pools[with_gpus]

    def groups(self, with_gpus: bool) -> list[GroupCopy]:
        return [group for group in list(self._copies.values()) if with_gpus == (group.shape.gpus > 0)]

    def near(self, with_gpus: bool) -> list[tuple[JobKey, GroupCopy]]:
        """The first in order, and those who have waited longest; some of them twice. Found once."""
        found = self._near.get(with_gpus)
        if found is None:
            found = self._near[with_gpus] = list(_near(self.groups(with_gpus)))
        return found


class Waiting:
    """One that waits, as it stands now. Nothing here changes: a thread may go by it."""

    __slots__ = (
        "count",
        "due",
        "estimated_s",
        "expected",
        "group",
        "key",
        "limit",
        "limit_s",
        "place",
        "precedence",
        "quiet_due",
        "since",
        "size",
    )  # fmt: skip

    def __init__(
        self, key: JobKey, group: GroupCopy, size: int, count: int, dues: tuple[float, float]
    ) -> None:
        self.key = key
        self.group = group
        self.size = size
        # For how many it stands: what they take is one after the other.
        self.count = count
        self.place = (group.place, group.sort_key, key)
        self.precedence = group.precedence
        self.since = group.members[key]
        self.limit = group.limit
        self.expected = group.length
        self.limit_s, self.estimated_s = group.limit_s, group.estimated_s
        # After which wait it is promised its start, and after which if most stands idle.
        self.due, self.quiet_due = dues


# A job, and its group.
Member = tuple[JobKey, GroupCopy]


def line(snapshot: QueueSnapshot, with_gpus: bool, also: Member | None = None) -> list[Waiting]:
    """Those who wait for GPUs, or for none: nobody twice, and `also` in any case."""
    pool, patience = snapshot.pool(with_gpus), snapshot.policy.patience
    dues: dict[GroupCopy, tuple[float, float]] = {}
    found = []
    for key, group, count in _all(snapshot, with_gpus, also):
        size = size_of(group.shape, with_gpus)
        if 0 < size <= pool.usable:
            if group not in dues:
                often, rarely = (patience_for(patience, size / pool.size, quiet) for quiet in (False, True))
                dues[group] = group.patience_basis_s * often, group.patience_basis_s * rarely
            found.append(Waiting(key, group, size, count, dues[group]))
    return found


def _all(
    snapshot: QueueSnapshot, with_gpus: bool, also: Member | None
) -> Iterator[tuple[JobKey, GroupCopy, int]]:
    """Each with for how many it stands."""
    seen: set[JobKey] = set()
    for key, group in ([also] if also else []) + snapshot.near(with_gpus):
        if key not in seen:
            seen.add(key)
            yield key, group, 1
    groups = snapshot.groups(with_gpus)
    each = 1 + (sum(len(group.members) for group in groups) - len(seen)) // MOST_FAR
    first = 0
    for group in groups:
        for key in islice(group.members, first, None, each):
            if key not in seen:
                yield key, group, each
        first = (first - len(group.members)) % each


def _near(groups: list[GroupCopy]) -> Iterator[Member]:
    told = 0
    for group in heapq.nsmallest(MOST_NEAR, groups, key=lambda group: group.order):
        for member in islice(group.members, MOST_NEAR - told):
            told += 1
            yield member, group
        if told == MOST_NEAR:
            break
    by_precedence: dict[int, list[GroupCopy]] = {}
    for group in groups:
        by_precedence.setdefault(group.precedence, []).append(group)
    for alike in by_precedence.values():
        for group in heapq.nsmallest(MAX_CANDIDATES, alike, key=lambda group: (group.since, group.head)):
            yield group.head, group


def ahead_of(snapshot: QueueSnapshot, job: Member) -> Iterator[tuple[GroupCopy, int]]:
    """Who stands before a job, of those who wait for GPUs or not: of which group how many."""
    key, own = job
    mine = own.order
    for with_gpus in (False, True):
        for group in snapshot.groups(with_gpus):
            if group is own:
                before = sum(other < key for other in group.members)
                if before:
                    yield group, before
            elif group.order < mine:
                yield group, len(group.members)


def size_of(shape: Shape, with_gpus: bool) -> int:
    return shape.gpus if with_gpus else shape.cpus
