"""What the queue is made of: groups of jobs that fit or wait together, and lanes of groups.

Who has waited longest: the first few in order, as every round looks at them, and the rest as a heap.
"""

from __future__ import annotations

import heapq
from bisect import insort
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.resources import Shape, standing_of
from gflow.core.state.fair_share import BANDS
from gflow.core.state.runtime_estimates import Batch

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
    # What predictions go by: the work, the half day in which it was submitted, the time limit.
    what: str
    span: int
    limit_s: int
    # With the limit it bounds how long a job can hold its GPUs; 0 without a limit.
    grace_s: int


class Room:
    """What is free, for a first look that costs nothing."""

    __slots__ = ("cpus", "idle_gpus", "memory_mib", "open_gpus")

    def __init__(self, idle_gpus: int, open_gpus: int, cpus: int, memory_mib: int) -> None:
        self.idle_gpus, self.open_gpus = idle_gpus, open_gpus
        self.cpus, self.memory_mib = cpus, memory_mib


EVERYTHING = Room(*[1 << 62] * 4)


class Group:
    """Waiting jobs of one key, oldest first. Removal is lazy: a heap cannot lose its middle."""

    __slots__ = (
        "aged", "batch", "bound", "counted", "cpus", "gpus", "guess", "key", "kind", "lane", "length",
        "listed", "members", "memory_mib", "number", "order", "rank", "removed", "shape", "standing",
    )  # fmt: skip

    def __init__(self, key: GroupKey, batch: Batch, number: int) -> None:
        self.key = key
        # What is in the key, at hand: see `Spec.standing`, and `Prospect` for the kind.
        self.shape = shape = key.shape
        self.gpus, self.cpus, self.memory_mib = shape.gpus, shape.cpus, shape.memory_mib
        self.kind = (shape.gpu_type, shape.gpu_memory_mib, shape.shared)
        self.standing = standing_of(key.priority, key.preemptible)
        self.batch = batch
        # No other group has it.
        self.number = number
        # The stamps of its place in its lane and of that among those who wait longest (0: none): whatever
        # else lies in those heaps is stale.
        self.listed = self.aged = 0
        # How long each of it may run, probably runs by what is known, and is expected to run: the lesser.
        self.bound = self.guess = self.length = 0.0
        # That as far as the order goes by it; and as far as it is judged whether it has waited long enough.
        self.rank = self.counted = 0.0
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
    """The smallest of a changing multiset of numbers (0: none). All operations O(log n) amortised."""

    __slots__ = ("_counts", "_heap", "value")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self.value = 0

    def add(self, value: int) -> None:
        count = self._counts.get(value, 0)
        self._counts[value] = count + 1
        if not count:
            heapq.heappush(self._heap, value)
            self.value = self._heap[0]

    def remove(self, value: int) -> None:
        self._counts[value] -= 1
        if not self._counts[value]:
            del self._counts[value]
            while self._heap and self._heap[0] not in self._counts:
                heapq.heappop(self._heap)
            self.value = self._heap[0] if self._heap else 0


# A group's place in its lane: the shortest first, then earlier arrival. Length, first job, stamp, group; as
# with `core.state.queue_index.Age`, it is true only while the stamp is the group's own.
Entry = tuple[float, JobKey, int, Group]


class Lane:
    """Groups of one priority and band that ask for GPUs of the same kind and number in the same way."""

    __slots__ = ("cpus", "entries", "gpus", "groups", "guessed", "key", "memory", "place", "shared")

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        self.place, self.gpus, self.shared = key[0], key[1], key[2]
        # How many groups, and of how many of them history says something.
        self.groups = self.guessed = 0
        # A heap; of a group only the one with its stamp is true.
        self.entries: list[Entry] = []
        self.cpus = Least()
        self.memory = Least()

    def may_fit(self, room: Room) -> bool:
        """Whether the least demanding group could fit; says nothing about any one group."""
        gpus = room.open_gpus if self.shared else room.idle_gpus
        return self.gpus <= gpus and self.cpus.value <= room.cpus and self.memory.value <= room.memory_mib

    def list(self, entry: Entry) -> None:
        heapq.heappush(self.entries, entry)
        if len(self.entries) > MOST_STALE + 2 * self.groups:
            # Lengths change, and what they were may never come to the front.
            self.entries = [entry for entry in self.entries if entry[3].listed == entry[2]]
            heapq.heapify(self.entries)

    def first(self) -> Entry | None:
        """The first entry that still speaks the truth; stale ones are dropped."""
        entries = self.entries
        while entries:
            entry = entries[0]
            if entry[3].listed == entry[2]:
                return entry
            heapq.heappop(entries)
        return None


# Its place among the lanes (see `place_of`), GPUs, whether shared, their type and memory.
LaneKey = tuple[int, int, bool, str, int]


def place_of(standing: int, band: int) -> int:
    """The less, the earlier: higher priority first, then those who do not make way, then the lower band."""
    return band - BANDS * standing


# Since when a group's first job waits, that job, the stamp, the group. No two have one stamp, so that groups
# themselves are never compared; and it is true only while it is the group's own stamp (see `Group.aged`).
Age = tuple[float, JobKey, int, "Group"]


class Ages:
    """Of one kind of jobs. Those that are not true any more are dropped when somebody comes across them."""

    __slots__ = ("_first", "_rest")

    def __init__(self) -> None:
        # Whoever is in `_first` has waited longer than all in `_rest`.
        self._first: list[Age] = []
        self._rest: list[Age] = []

    def __len__(self) -> int:
        """How many there are, true or not."""
        return len(self._first) + len(self._rest)

    def add(self, age: Age) -> None:
        if self._first and age < self._first[-1]:
            insort(self._first, age)
        else:
            heapq.heappush(self._rest, age)

    def at(self, place: int) -> Age | None:
        """Who has waited longest but so many; None: there are not as many."""
        first, rest = self._first, self._rest
        while True:
            if place < len(first):
                age = first[place]
                if age[3].aged == age[2]:
                    return age
                del first[place]
            elif rest:
                first.append(heapq.heappop(rest))
            else:
                return None

    def tidy(self) -> None:
        """Drop all that are not true any more."""
        self._rest = sorted(age for age in self._first + self._rest if age[3].aged == age[2])
        self._first = []
