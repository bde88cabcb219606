"""Jobs that only wait for resources, grouped so that a round never walks the whole queue.

Jobs of one owner, priority and shape are interchangeable to the scheduler except for
their order of arrival: if the first does not fit, none does. So the queue is a set of
groups, and a round looks at each group's head. Groups are kept in one bucket per number
of GPUs: buckets that ask for more than is free are not looked at.

Cost: add and remove O(log n); a round O(groups looked at + jobs started).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job, Shape


class GroupKey(NamedTuple):
    """What makes jobs interchangeable."""

    priority: int
    uid: int
    shape: Shape


class Group:
    """Waiting jobs of one key, oldest first. Removal is lazy: a heap cannot lose its middle."""

    __slots__ = ("key", "members", "order")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.order: list[JobKey] = []
        self.members: set[JobKey] = set()

    def head(self) -> JobKey | None:
        while self.order and self.order[0] not in self.members:
            heapq.heappop(self.order)
        return self.order[0] if self.order else None


class _Entry(NamedTuple):
    """A group's place in its bucket: higher priority first, then earlier arrival."""

    rank: int
    head: JobKey
    group: GroupKey


class ReadyQueue:
    """All groups, and their order per number of GPUs."""

    def __init__(self) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self._buckets: dict[int, list[_Entry]] = {}

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups.values())

    def __contains__(self, job: Job) -> bool:
        group = self.groups.get(group_key(job))
        return group is not None and job.key in group.members

    def add(self, job: Job) -> GroupKey:
        key = group_key(job)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key)
        before = group.head()
        group.members.add(job.key)
        heapq.heappush(group.order, job.key)
        if before is None or job.key < before:
            self._push(group)
        return key

    def remove(self, job: Job) -> None:
        group = self.groups.get(group_key(job))
        if group is None or job.key not in group.members:
            return
        was_head = group.head() == job.key
        group.members.discard(job.key)
        if not group.members:
            del self.groups[group.key]
        elif was_head:
            self._push(group)

    def walk(self) -> Walk:
        """One pass over the groups in order of start."""
        return Walk(self)

    def _push(self, group: Group) -> None:
        head = group.head()
        if head is not None:
            bucket = self._buckets.setdefault(group.key.shape.gpus, [])
            heapq.heappush(bucket, _Entry(-group.key.priority, head, group.key))

    def _first(self, bucket: list[_Entry]) -> _Entry | None:
        """The bucket's first entry that still speaks the truth; stale ones are dropped."""
        while bucket:
            entry = bucket[0]
            group = self.groups.get(entry.group)
            if group is not None and group.head() == entry.head:
                return entry
            heapq.heappop(bucket)
        return None


class Walk:
    """A pass over the queue. A group that does not fit is set aside until the pass ends."""

    def __init__(self, queue: ReadyQueue) -> None:
        self._queue = queue
        self._aside: list[tuple[list[_Entry], _Entry]] = []

    def next(self, free_gpus: int) -> JobKey | None:
        """The first job, in order, that asks for no more GPUs than are free."""
        best: _Entry | None = None
        for count, bucket in self._queue._buckets.items():
            if count <= free_gpus:
                entry = self._queue._first(bucket)
                if entry is not None and (best is None or entry < best):
                    best = entry
        return best.head if best else None

    def skip(self, job: Job) -> None:
        """This job does not fit, so nothing of its group does."""
        bucket = self._queue._buckets[job.spec.shape.gpus]
        self._aside.append((bucket, heapq.heappop(bucket)))

    def close(self) -> None:
        for bucket, entry in self._aside:
            heapq.heappush(bucket, entry)


def group_key(job: Job) -> GroupKey:
    return GroupKey(job.spec.priority, job.uid, job.spec.shape)


def in_order(queue: ReadyQueue) -> Iterator[GroupKey]:
    """Groups in order of start, for explanations. O(groups log groups)."""
    yield from sorted(queue.groups, key=lambda key: (-key.priority, queue.groups[key].head() or 0))
