"""Jobs that only wait for resources, grouped so that a round never walks the whole queue.

Jobs of one owner, priority, shape, cap and expected length are interchangeable to the scheduler
except for their order of arrival: if the first may not start, none may. So the queue is a set of
groups, and a round looks at each group's head. Groups are kept in lanes: one per priority, band of
fair share, and kind and number of GPUs. A lane whose smallest wish exceeds what is free is not
looked at, and within a lane the shortest come first.

Cost: add and remove O(log n); a round O(lanes + groups looked at + jobs started).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

from gflow.core.history import DAY_S, Batch, History, Kind, what_of
from gflow.core.ids import JobKey
from gflow.core.model import Job, Shape
from gflow.core.shares import ABOUT_BAND


class GroupKey(NamedTuple):
    """What makes jobs interchangeable."""

    priority: int
    uid: int
    shape: Shape
    group: int
    max_concurrent: int
    project: str
    # What predictions go by: the work, the day it was submitted, the time limit.
    what: str
    day: int
    limit_s: int


class Room(NamedTuple):
    """What is free, for a first look that costs nothing."""

    idle_gpus: int
    open_gpus: int
    cpus: int
    memory_mib: int


class Group:
    """Waiting jobs of one key, oldest first. Removal is lazy: a heap cannot lose its middle."""

    __slots__ = ("batch", "key", "lane", "length", "members", "order", "rank", "removed")

    def __init__(self, key: GroupKey, batch: Batch) -> None:
        self.key = key
        self.batch = batch
        # How long each of it is expected to run, and that as far as the order goes by it.
        self.length = self.rank = 0.0
        self.lane: Lane
        self.order: list[JobKey] = []
        # Each with since when it waits; see `Job.ready_at`.
        self.members: dict[JobKey, float] = {}
        # Those that are still in `order` and no members any more.
        self.removed: set[JobKey] = set()

    def add(self, key: JobKey, since: float) -> None:
        self.members[key] = since
        if key in self.removed:  # it comes back, and its place in the order is still there
            self.removed.discard(key)
        else:
            heapq.heappush(self.order, key)

    def remove(self, key: JobKey) -> None:
        del self.members[key]
        self.removed.add(key)

    def head(self) -> JobKey | None:
        while self.order and self.order[0] in self.removed:
            self.removed.discard(heapq.heappop(self.order))
        return self.order[0] if self.order else None


class _Least:
    """The smallest of a changing multiset of numbers. All operations O(log n) amortised."""

    __slots__ = ("_counts", "_heap")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []

    def add(self, value: int) -> None:
        if value not in self._counts:
            heapq.heappush(self._heap, value)
        self._counts[value] = self._counts.get(value, 0) + 1

    def remove(self, value: int) -> None:
        self._counts[value] -= 1
        if not self._counts[value]:
            del self._counts[value]

    def value(self) -> int:
        """The smallest; 0 if there is none."""
        while self._heap and self._heap[0] not in self._counts:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else 0


class Entry(NamedTuple):
    """A group's place in its lane: the shortest first, then earlier arrival."""

    length: float
    head: JobKey
    group: GroupKey


class Lane:
    """Groups of one priority and band that ask for GPUs of the same kind and number in the same way."""

    __slots__ = ("cpus", "entries", "gpus", "groups", "key", "listed", "memory", "place", "shared")

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        # Higher priority first, then the lower band.
        self.place = key[:2]
        self.gpus, self.shared = key[2], key[3]
        self.groups = 0
        self.entries: list[Entry] = []
        # What is in `entries`, or set aside by a walk: nothing is listed twice.
        self.listed: set[Entry] = set()
        self.cpus = _Least()
        self.memory = _Least()

    def may_fit(self, room: Room) -> bool:
        """Whether the least demanding group could fit; says nothing about any one group."""
        gpus = room.open_gpus if self.shared else room.idle_gpus
        return self.gpus <= gpus and self.cpus.value() <= room.cpus and self.memory.value() <= room.memory_mib


# Less its priority, its band, GPUs, whether shared, their type and memory.
LaneKey = tuple[int, int, int, bool, str, int]
# Who has waited longest first: since when, job, group.
Age = tuple[float, JobKey, GroupKey]


class ReadyQueue:
    """All groups, and their order within each lane."""

    def __init__(self, history: History, *, by_length: bool, use_history: bool) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        # Who waits, with their groups; and the band of each (see `core.shares`).
        self.people: dict[int, set[GroupKey]] = {}
        self.bands: dict[int, int] = {}
        # (priority, whether it asks for GPUs) -> who has waited longest.
        self.ages: dict[tuple[int, bool], list[Age]] = {}
        self._aged: set[Age] = set()
        self._history = history
        self._by_length = by_length
        self._use_history = use_history
        self._of_batch: dict[tuple[Kind, int], set[GroupKey]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, job: Job) -> bool:
        group = self.groups.get(group_key(job))
        return group is not None and job.key in group.members

    # ------------------------------------------------------------ in and out

    def add(self, job: Job) -> GroupKey:
        key = group_key(job)
        group = self.groups.get(key)
        if group is None:
            group = self._new_group(key)
        before = group.head()
        group.add(job.key, job.ready_at)
        self._size += 1
        if before is None or job.key < before:
            self._push(group)
        return key

    def remove(self, job: Job) -> None:
        key = group_key(job)
        group = self.groups.get(key)
        if group is None or job.key not in group.members:
            return
        was_head = group.head() == job.key
        group.remove(job.key)
        self._size -= 1
        if not group.members:
            self._drop_group(group)
        elif was_head:
            self._push(group)

    def _new_group(self, key: GroupKey) -> Group:
        batch = self._history.batch(Kind(key.uid, key.what, key.shape.gpus), key.day)
        if not batch.waiting:
            self._history.look_at(batch)
        batch.waiting += 1
        group = self.groups[key] = Group(key, batch)
        self._of_batch.setdefault((batch.kind, batch.day), set()).add(key)
        self.people.setdefault(key.uid, set()).add(key)
        self._set_length(group)
        self._enter(group)
        return group

    def _drop_group(self, group: Group) -> None:
        key, batch = group.key, group.batch
        del self.groups[key]
        batch.waiting -= 1
        _discard(self._of_batch, (batch.kind, batch.day), key)
        _discard(self.people, key.uid, key)
        self._leave(group)

    def _enter(self, group: Group) -> None:
        """Into the lane that its owner's band makes it one of."""
        shape, band = group.key.shape, self.bands.get(group.key.uid, ABOUT_BAND)
        key = (-group.key.priority, band, shape.gpus, shape.shared, shape.gpu_type, shape.gpu_memory_mib)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key)
        group.lane = lane
        lane.groups += 1
        lane.cpus.add(shape.cpus)
        lane.memory.add(shape.memory_mib)

    def _leave(self, group: Group) -> None:
        lane, shape = group.lane, group.key.shape
        lane.groups -= 1
        lane.cpus.remove(shape.cpus)
        lane.memory.remove(shape.memory_mib)
        if not lane.groups:
            del self.lanes[lane.key]

    # ------------------------------------------------------------ order

    def expected_s(self, job: Job) -> float:
        """How long a job that waits or runs is expected to take: its limit bounds what history says."""
        return self.length(job.spec.time_limit_s, self._history.batch_of(job))

    def length(self, limit_s: int, batch: Batch) -> float:
        """What a limit and a batch make of each other."""
        if not self._use_history:
            return limit_s or float("inf")
        return min(limit_s, batch.length) if limit_s else batch.length

    def _set_length(self, group: Group) -> None:
        group.length = self.length(group.key.limit_s, group.batch)
        # Wide jobs cost others more: four GPUs count as if the job took twice as long.
        group.rank = group.length * sqrt(group.key.shape.gpus or 1) if self._by_length else 0.0

    def refresh(self) -> None:
        """Take in what history has learnt since."""
        changed, self._history.changed = self._history.changed, set()
        for batch in changed:
            for key in self._of_batch.get(batch, ()):
                group = self.groups[key]
                self._set_length(group)
                self._push(group)

    def set_bands(self, bands: dict[int, int]) -> None:
        """Other bands for these people: their groups change lanes."""
        for uid, band in bands.items():
            if self.bands.get(uid, ABOUT_BAND) != band:
                self.bands[uid] = band
                for key in self.people.get(uid, ()):
                    group = self.groups[key]
                    self._leave(group)
                    self._enter(group)
                    self._push(group)

    def standing(self, key: GroupKey) -> tuple[tuple[int, ...], Entry]:
        """Where this group stands in the order of start."""
        group = self.groups[key]
        return group.lane.place, self._entry(group)

    def _entry(self, group: Group) -> Entry:
        head = group.head()
        assert head is not None
        return Entry(group.rank, head, group.key)

    def _push(self, group: Group) -> None:
        lane, entry = group.lane, self._entry(group)
        if entry not in lane.listed:
            lane.listed.add(entry)
            heapq.heappush(lane.entries, entry)
        age = (group.members[entry.head], entry.head, group.key)
        if age not in self._aged:
            self._aged.add(age)
            heapq.heappush(self.ages.setdefault((group.key.priority, group.key.shape.gpus > 0), []), age)

    def first(self, lane: Lane) -> Entry | None:
        """The lane's first entry that still speaks the truth; stale ones are dropped."""
        entries = lane.entries
        while entries:
            entry = entries[0]
            group = self.groups.get(entry.group)
            if (
                group is not None
                and group.lane is lane
                and group.rank == entry.length
                and group.head() == entry.head
            ):
                return entry
            lane.listed.discard(heapq.heappop(entries))
        return None

    def longest_waiting(self, priority: int, with_gpus: bool) -> Iterator[tuple[JobKey, Group]]:
        """Heads of groups, who has waited longest first. Take few: each costs a step."""
        ages = self.ages.get((priority, with_gpus), [])
        aside: list[Age] = []
        try:
            while ages:
                age = heapq.heappop(ages)
                group = self.groups.get(age[2])
                if group is None or group.head() != age[1] or group.members[age[1]] != age[0]:
                    self._aged.discard(age)
                else:
                    aside.append(age)
                    yield age[1], group
        finally:
            for age in aside:
                heapq.heappush(ages, age)
            if not ages:
                self.ages.pop((priority, with_gpus), None)


class Walk:
    """A pass over the queue in order. A group that may not start is set aside until the pass ends."""

    def __init__(self, queue: ReadyQueue) -> None:
        self._queue = queue
        self._aside: list[tuple[Lane, Entry]] = []
        self._closed: set[LaneKey] = set()

    def next(self, room: Room) -> JobKey | None:
        """The first job, in order, of a lane that may fit into `room`."""
        best: Entry | None = None
        place: tuple[int, ...] = ()
        for lane in self._queue.lanes.values():
            if lane.may_fit(room) and lane.key not in self._closed:
                entry = self._queue.first(lane)
                if entry is not None and (best is None or (lane.place, entry) < (place, best)):
                    best, place = entry, lane.place
        return best.head if best else None

    def skip(self, job: Job) -> None:
        """This job may not start, so nothing of its group may."""
        lane = self._queue.groups[group_key(job)].lane
        self._aside.append((lane, heapq.heappop(lane.entries)))

    def skip_lane(self, job: Job, but: list[Job]) -> None:
        """Nor may any that comes after it in its lane, unless one of `but` is among them."""
        lane = self._queue.groups[group_key(job)].lane
        if any(self._queue.groups[group_key(one)].lane is lane for one in but):
            self.skip(job)
        else:
            self._closed.add(lane.key)

    def again(self) -> Walk:
        """The same from the start."""
        self.close()
        return Walk(self._queue)

    def close(self) -> None:
        for lane, entry in self._aside:
            heapq.heappush(lane.entries, entry)


def group_key(job: Job) -> GroupKey:
    spec = job.spec
    return GroupKey(
        spec.priority,
        job.uid,
        spec.shape,
        spec.group,
        spec.max_concurrent,
        spec.project,
        what_of(spec),
        int(job.submitted_at // DAY_S),
        spec.time_limit_s,
    )


def _discard(table: dict[Any, set[GroupKey]], name: Any, key: GroupKey) -> None:
    """Out of a set that is not kept when it is empty."""
    table[name].discard(key)
    if not table[name]:
        del table[name]
