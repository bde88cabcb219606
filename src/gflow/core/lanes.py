"""What the queue is made of: groups of jobs that fit or wait together, and lanes of groups."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from gflow.core.history import Batch
from gflow.core.ids import JobKey
from gflow.core.model import Shape

# So many entries that are not true any more may lie about before somebody tidies up.
MOST_STALE = 64


class GroupKey(NamedTuple):
    """What makes jobs interchangeable."""

    priority: int
    preemptible: bool
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


EVERYTHING = Room(*[1 << 62] * 4)


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

    def __lt__(self, other: Group) -> bool:
        """For heaps: where all else is equal, at most one of the two still has that head."""
        return False

    def add(self, key: JobKey, since: float) -> None:
        self.members[key] = since
        if key in self.removed:  # it comes back, and its place in the order is still there
            self.removed.discard(key)
        else:
            heapq.heappush(self.order, key)

    def remove(self, key: JobKey) -> None:
        del self.members[key]
        if self.order[0] == key:
            heapq.heappop(self.order)
        else:
            self.removed.add(key)

    def head(self) -> JobKey | None:
        order, removed = self.order, self.removed
        while removed and order and order[0] in removed:
            removed.discard(heapq.heappop(order))
        return order[0] if order else None


class Least:
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
    group: Group


class Lane:
    """Groups of one priority and band that ask for GPUs of the same kind and number in the same way."""

    __slots__ = ("cpus", "entries", "gpus", "groups", "key", "listed", "memory", "place", "shared")

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        # Higher priority first, then those who do not make way, then the lower band.
        self.place = key[:3]
        self.gpus, self.shared = key[3], key[4]
        self.groups = 0
        self.entries: list[Entry] = []
        # What is in `entries`, or set aside by a walk: nothing is listed twice.
        self.listed: set[Entry] = set()
        self.cpus = Least()
        self.memory = Least()

    def may_fit(self, room: Room) -> bool:
        """Whether the least demanding group could fit; says nothing about any one group."""
        gpus = room.open_gpus if self.shared else room.idle_gpus
        return self.gpus <= gpus and self.cpus.value() <= room.cpus and self.memory.value() <= room.memory_mib

    def list(self, entry: Entry) -> None:
        if entry not in self.listed:
            self.listed.add(entry)
            heapq.heappush(self.entries, entry)
            if len(self.entries) > MOST_STALE + 2 * self.groups:
                self._tidy()

    def _tidy(self) -> None:
        """Drop what is stale: lengths change, and what they were may never come to the front."""
        stale = [entry for entry in self.entries if not self._is_true(entry)]
        self.listed.difference_update(stale)
        self.entries = [entry for entry in self.entries if entry in self.listed]
        heapq.heapify(self.entries)

    def _is_true(self, entry: Entry) -> bool:
        rank, head, group = entry
        return group.rank == rank and group.lane is self and group.head() == head

    def first(self) -> Entry | None:
        """The first entry that still speaks the truth; stale ones are dropped."""
        entries = self.entries
        while entries:
            entry = entries[0]
            if self._is_true(entry):
                return entry
            self.listed.discard(heapq.heappop(entries))
        return None


# Less its priority, whether it makes way, its band, GPUs, whether shared, their type and memory.
LaneKey = tuple[int, bool, int, int, bool, str, int]
