"""Data structures of the ready queue: groups (equivalence classes), buckets of groups, an oldest-first index.

Entries of heaps are deleted lazily. Each carries a generation and is stale unless that is the group's present
one.
"""

from __future__ import annotations

import heapq
from bisect import insort
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.key_table import KeyTable
from gflow.core.resources import Shape, precedence_of
from gflow.core.state.fair_share import BANDS
from gflow.core.state.runtime_estimates import Batch
from gflow.core.state.sorted_keys import SortedKeys

# Stale entries that a heap may hold, beside as many as it has live ones, before it is rebuilt.
MOST_STALE = 64


class GroupKey(NamedTuple):
    """Jobs with equal keys are one equivalence class."""

    priority: int
    preemptible: bool
    uid: int
    shape: Shape
    group: int
    max_concurrent: int
    project: str
    # For the runtime estimate: the work, the half day in which it was submitted, the time limit (0: none).
    what: str
    span: int
    limit_s: int
    # Limit and grace time bound how long a job can hold its GPUs; 0 without a limit.
    grace_s: int


class Room:
    """Free resources as totals, for a cheap first check."""

    __slots__ = ("cpus", "idle_gpus", "memory_mib", "open_gpus")

    def __init__(self, idle_gpus: int, open_gpus: int, cpus: int, memory_mib: int) -> None:
        self.idle_gpus, self.open_gpus = idle_gpus, open_gpus
        self.cpus, self.memory_mib = cpus, memory_mib


EVERYTHING = Room(*[1 << 62] * 4)


class Group:
    """Waiting jobs of one key, in order of job id."""

    __slots__ = (
        "age_generation",
        "batch",
        "bucket",
        "bucket_generation",
        "cpus",
        "estimated_s",
        "gpus",
        "key",
        "kind",
        "length",
        "limit_s",
        "longest_s",
        "members",
        "memory_mib",
        "number",
        "order",
        "patience_basis_s",
        "precedence",
        "shape",
        "sort_key",
    )  # fmt: skip

    def __init__(self, key: GroupKey, batch: Batch, number: int) -> None:
        self.key = key
        # Derived from the key. Copied, because every round reads them and fields of a named tuple are slow to
        # read in the compiled engine. `kind` selects the availability profile.
        self.shape = shape = key.shape
        self.gpus, self.cpus, self.memory_mib = shape.gpus, shape.cpus, shape.memory_mib
        self.kind = (shape.gpu_type, shape.gpu_memory_mib, shape.shared)
        self.precedence = precedence_of(key.priority, key.preemptible)
        self.batch = batch
        # Unique among groups.
        self.number = number
        # Generations of its entries in its bucket and in the oldest-first index (0: none). Entries with
        # another generation are stale.
        self.bucket_generation = self.age_generation = 0
        # Of each job: time limit, runtime estimate (infinite: none), and expected length: the lesser of both.
        self.limit_s = self.estimated_s = self.length = 0.0
        # How long such a job may run, which counts in backfill against reservations of other users.
        self.longest_s = 0.0
        # The sort key within the bucket; and the length by which patience is measured.
        self.sort_key = self.patience_basis_s = 0.0
        self.bucket: Bucket
        self.order = SortedKeys()
        # Job -> the time since which it waits; see `Job.ready_at`.
        self.members: KeyTable[float] = KeyTable()

    def add(self, key: JobKey, since: float) -> None:
        self.members[key] = since
        self.order.add(key)

    def remove(self, key: JobKey) -> None:
        del self.members[key]
        self.order.remove(key)

    def head(self) -> JobKey | None:
        return self.order.first()


class Least:
    """The smallest of a changing multiset of numbers (0: none). All operations O(log n) amortised."""

    __slots__ = ("_counts", "_heap", "value")

    def __init__(self) -> None:
        self._counts: dict[float, int] = {}
        self._heap: list[float] = []
        self.value = 0.0

    def add(self, value: float) -> None:
        count = self._counts.get(value, 0)
        self._counts[value] = count + 1
        if not count:
            heapq.heappush(self._heap, value)
            self.value = self._heap[0]

    def remove(self, value: float) -> None:
        self._counts[value] -= 1
        if not self._counts[value]:
            del self._counts[value]
            while self._heap and self._heap[0] not in self._counts:
                heapq.heappop(self._heap)
            self.value = self._heap[0] if self._heap else 0.0


# A group's entry in its bucket: sort key, head, generation, group. Shortest first, then earlier arrival.
# Stale unless the generation equals `Group.bucket_generation`.
Entry = tuple[float, JobKey, int, Group]


class Bucket:
    """Groups of one precedence and band that ask for the same number and kind of GPUs, shared or not."""

    __slots__ = (
        "cpus", "entries", "gpus", "groups", "key", "longest", "memory", "place", "shared",
    )  # fmt: skip

    def __init__(self, key: BucketKey) -> None:
        self.key = key
        self.place, self.gpus, self.shared = key[0], key[1], key[2]
        self.groups = 0
        # A heap, with stale entries.
        self.entries: list[Entry] = []
        self.cpus = Least()
        self.memory = Least()
        # Of `Group.longest_s`.
        self.longest = Least()

    def may_fit(self, room: Room) -> bool:
        """Whether the smallest requests of the bucket fit. Necessary, not sufficient, for any one group."""
        gpus = room.open_gpus if self.shared else room.idle_gpus
        return self.gpus <= gpus and self.cpus.value <= room.cpus and self.memory.value <= room.memory_mib

    def list(self, entry: Entry) -> None:
        heapq.heappush(self.entries, entry)
        if len(self.entries) > MOST_STALE + 2 * self.groups:
            # Sort keys change, and stale entries may never reach the front of the heap.
            self.entries = [entry for entry in self.entries if entry[3].bucket_generation == entry[2]]
            heapq.heapify(self.entries)

    def first(self) -> Entry | None:
        """The first entry that is not stale; stale ones before it are dropped."""
        entries = self.entries
        while entries:
            entry = entries[0]
            if entry[3].bucket_generation == entry[2]:
                return entry
            heapq.heappop(entries)
        return None


# Place in the order of buckets (see `place_of`), number of GPUs, whether shared, their type and memory.
BucketKey = tuple[int, int, bool, str, int]


def place_of(precedence: int, band: int) -> int:
    """Sort key of buckets, lower first: higher precedence, then the lower band of fair share."""
    return band - BANDS * precedence


# An entry of the oldest-first index: the time since which a group's head waits, the head, generation, group.
# Generations are unique, so that groups are never compared. Stale unless the generation equals
# `Group.age_generation`.
Age = tuple[float, JobKey, int, "Group"]


class OldestFirst:
    """An index of groups by the waiting time of their heads, oldest first. Stale entries are dropped lazily.

    The first few are a sorted list, as every round reads them; the rest are a heap.
    """

    __slots__ = ("_first", "_rest")

    def __init__(self) -> None:
        # Each entry of `_first` precedes all entries of `_rest`.
        self._first: list[Age] = []
        self._rest: list[Age] = []

    def __len__(self) -> int:
        """The number of entries, stale ones included."""
        return len(self._first) + len(self._rest)

    def add(self, age: Age) -> None:
        if self._first and age < self._first[-1]:
            insort(self._first, age)
        else:
            heapq.heappush(self._rest, age)

    def at(self, place: int) -> Age | None:
        """The entry at this place, the oldest at 0; None: there are not as many."""
        first, rest = self._first, self._rest
        while True:
            if place < len(first):
                age = first[place]
                if age[3].age_generation == age[2]:
                    return age
                del first[place]
            elif rest:
                first.append(heapq.heappop(rest))
            else:
                return None

    def compact(self) -> None:
        """Drop all stale entries."""
        self._rest = sorted(age for age in self._first + self._rest if age[3].age_generation == age[2])
        self._first = []
