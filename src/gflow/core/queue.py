"""Jobs that only wait for resources, grouped so that a round never walks the whole queue.

Jobs of one owner, priority, shape and cap are interchangeable to the scheduler except for
their order of arrival: if the first does not fit, none does. So the queue is a set of
groups, and a round looks at each group's head. Groups are kept in one bucket per number
of GPUs (and per kind of sharing); a bucket whose smallest wish exceeds what is free is not
looked at.

Cost: add and remove O(log n); a round O(groups looked at + jobs started).
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job, Shape


class GroupKey(NamedTuple):
    """What makes jobs interchangeable."""

    priority: int
    uid: int
    shape: Shape
    group: int
    max_concurrent: int


class Room(NamedTuple):
    """What is free, for a first look that costs nothing."""

    idle_gpus: int
    open_gpus: int
    cpus: int
    memory_mib: int


class Group:
    """Waiting jobs of one key, oldest first. Removal is lazy: a heap cannot lose its middle."""

    __slots__ = ("key", "members", "order", "removed")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.order: list[JobKey] = []
        self.members: set[JobKey] = set()
        # Those that are still in `order` and no members any more.
        self.removed: set[JobKey] = set()

    def add(self, key: JobKey) -> None:
        self.members.add(key)
        if key in self.removed:  # it comes back, and its place in the order is still there
            self.removed.discard(key)
        else:
            heapq.heappush(self.order, key)

    def remove(self, key: JobKey) -> None:
        self.members.discard(key)
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
    """A group's place in its bucket: higher priority first, then earlier arrival."""

    rank: int
    head: JobKey
    group: GroupKey


class _Bucket:
    """Groups that ask for the same number of GPUs in the same way."""

    __slots__ = ("cpus", "entries", "gpus", "listed", "memory", "shared")

    def __init__(self, shape: Shape) -> None:
        self.gpus = shape.gpus
        self.shared = shape.shared
        self.entries: list[Entry] = []
        # What is in `entries`, or set aside by a walk: nothing is listed twice.
        self.listed: set[Entry] = set()
        self.cpus = _Least()
        self.memory = _Least()

    def may_fit(self, room: Room) -> bool:
        """Whether the least demanding group could fit; says nothing about any one group."""
        gpus = room.open_gpus if self.shared else room.idle_gpus
        return self.gpus <= gpus and self.cpus.value() <= room.cpus and self.memory.value() <= room.memory_mib


class ReadyQueue:
    """All groups, and their order within each bucket."""

    def __init__(self) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self.buckets: dict[tuple[int, bool], _Bucket] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, job: Job) -> bool:
        group = self.groups.get(group_key(job))
        return group is not None and job.key in group.members

    def add(self, job: Job) -> GroupKey:
        key = group_key(job)
        group = self.groups.get(key)
        if group is None:
            group = self._new_group(key)
        before = group.head()
        group.add(job.key)
        self._size += 1
        if before is None or job.key < before:
            self._push(group)
        return key

    def entry(self, key: GroupKey) -> Entry:
        """Where this group stands in the order of start."""
        head = self.groups[key].head()
        assert head is not None
        return Entry(-key.priority, head, key)

    def remove(self, job: Job) -> None:
        group = self.groups.get(group_key(job))
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
        group = self.groups[key] = Group(key)
        bucket = self.bucket_of(key.shape)
        bucket.cpus.add(key.shape.cpus)
        bucket.memory.add(key.shape.memory_mib)
        return group

    def _drop_group(self, group: Group) -> None:
        del self.groups[group.key]
        bucket = self.bucket_of(group.key.shape)
        bucket.cpus.remove(group.key.shape.cpus)
        bucket.memory.remove(group.key.shape.memory_mib)

    def bucket_of(self, shape: Shape) -> _Bucket:
        key = (shape.gpus, shape.shared)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = _Bucket(shape)
        return bucket

    def _push(self, group: Group) -> None:
        bucket, entry = self.bucket_of(group.key.shape), self.entry(group.key)
        if entry not in bucket.listed:
            bucket.listed.add(entry)
            heapq.heappush(bucket.entries, entry)

    def first(self, bucket: _Bucket) -> Entry | None:
        """The bucket's first entry that still speaks the truth; stale ones are dropped."""
        entries = bucket.entries
        while entries:
            entry = entries[0]
            group = self.groups.get(entry.group)
            if group is not None and group.head() == entry.head:
                return entry
            bucket.listed.discard(heapq.heappop(entries))
        return None


class Walk:
    """A pass over the queue in order. A group that does not fit is set aside until the pass ends."""

    def __init__(self, queue: ReadyQueue) -> None:
        self._queue = queue
        self._aside: list[tuple[_Bucket, Entry]] = []

    def next(self, room: Room) -> JobKey | None:
        """The first job, in order, of a bucket that may fit into `room`."""
        best: Entry | None = None
        for bucket in self._queue.buckets.values():
            if bucket.may_fit(room):
                entry = self._queue.first(bucket)
                if entry is not None and (best is None or entry < best):
                    best = entry
        return best.head if best else None

    def skip(self, job: Job) -> None:
        """This job does not fit, so nothing of its group does."""
        bucket = self._queue.bucket_of(job.spec.shape)
        self._aside.append((bucket, heapq.heappop(bucket.entries)))

    def close(self) -> None:
        for bucket, entry in self._aside:
            heapq.heappush(bucket.entries, entry)


def group_key(job: Job) -> GroupKey:
    spec = job.spec
    return GroupKey(spec.priority, job.uid, spec.shape, spec.group, spec.max_concurrent)
