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
from collections.abc import Iterable
from math import sqrt
from typing import TYPE_CHECKING, Any

from gflow.core.history import DAY_S, Batch, History, Kind, what_of
from gflow.core.ids import JobKey
from gflow.core.lanes import MOST_STALE, Age, Entry, Group, GroupKey, Lane, LaneKey, Room
from gflow.core.model import Job, Shape
from gflow.core.shares import ABOUT_BAND

if TYPE_CHECKING:
    from gflow.core.promise import Promise

# Priority, and whether it asks for GPUs: who is oldest is judged apart.
AgeKind = tuple[int, bool]


class ReadyQueue:
    """All groups, and their order within each lane."""

    def __init__(self, history: History, *, by_length: bool, use_history: bool) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        # Where each job waits.
        self.where: dict[JobKey, Group] = {}
        # Who waits, with their groups; and the band of each (see `core.shares`).
        self.people: dict[int, set[Group]] = {}
        self.bands: dict[int, int] = {}
        # Who has waited longest, as heaps.
        self.ages: dict[AgeKind, list[Age]] = {}
        self._history = history
        self._by_length = by_length
        self._use_history = use_history
        self._of_batch: dict[Batch, set[Group]] = {}
        # How many groups there have been.
        self._made = 0

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, job: Job) -> bool:
        return job.key in self.where

    def group_of(self, job: Job) -> Group:
        """The group in which this job waits."""
        return self.where[job.key]

    def shape_of(self, job: Job) -> Shape:
        """What a job needs; of one that waits here it is known already."""
        group = self.where.get(job.key)
        return job.spec.shape if group is None else group.key.shape

    # ------------------------------------------------------------ in and out

    def add(self, job: Job) -> Group:
        key = group_key(job)
        group = self.groups.get(key)
        if group is None:
            group = self._new_group(key)
        before = group.head()
        group.add(job.key, job.ready_at)
        self.where[job.key] = group
        if before is None or job.key < before:
            self._push(group)
        return group

    def remove(self, job: Job) -> None:
        group = self.where.pop(job.key, None)
        if group is None:
            return
        was_head = group.head() == job.key
        group.remove(job.key)
        if not group.members:
            self._drop_group(group)
        elif was_head:
            self._push(group)

    def _new_group(self, key: GroupKey) -> Group:
        batch = self._history.batch(Kind(key.uid, key.what, key.shape.gpus), key.day)
        if not batch.waiting:
            self._history.look_at(batch)
        batch.waiting += 1
        self._made += 1
        group = self.groups[key] = Group(key, batch, self._made)
        self._of_batch.setdefault(batch, set()).add(group)
        self.people.setdefault(key.uid, set()).add(group)
        self._set_length(group)
        self._enter(group)
        return group

    def _drop_group(self, group: Group) -> None:
        key, batch = group.key, group.batch
        del self.groups[key]
        batch.waiting -= 1
        _discard(self._of_batch, batch, group)
        _discard(self.people, key.uid, group)
        self._leave(group)
        group.age = None

    def _enter(self, group: Group) -> None:
        """Into the lane that its owner's band makes it one of."""
        asked, band = group.key, self.bands.get(group.key.uid, ABOUT_BAND)
        shape = asked.shape
        kind = (shape.gpus, shape.shared, shape.gpu_type, shape.gpu_memory_mib)
        key = (-asked.priority, asked.preemptible, band, *kind)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key)
        group.lane = lane
        lane.groups += 1
        lane.cpus.add(shape.cpus)
        lane.memory.add(shape.memory_mib)

    def _leave(self, group: Group) -> None:
        lane, shape = group.lane, group.key.shape
        group.entry = None
        lane.groups -= 1
        lane.cpus.remove(shape.cpus)
        lane.memory.remove(shape.memory_mib)
        if not lane.groups:
            del self.lanes[lane.key]

    # ------------------------------------------------------------ order

    def expected_s(self, job: Job) -> float:
        """How long a job that waits or runs is expected to take: its limit bounds what history says."""
        group = self.where.get(job.key)
        batch = self._history.batch_of(job) if group is None else group.batch
        return self.length(job.spec.time_limit_s, batch)

    def surely_s(self, job: Job) -> float:
        """Within which time a waiting job will be over, as far as anybody can know: its limit, or history."""
        if job.spec.time_limit_s or self.where[job.key].batch.is_known:
            return self.expected_s(job)
        return float("inf")

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
            for group in self._of_batch.get(batch, ()):
                self._set_length(group)
                self._push(group)

    def set_bands(self, bands: dict[int, int]) -> None:
        """Other bands for people: their groups change lanes. Whoever is not named is about average."""
        before, self.bands = self.bands, bands
        if before == bands:
            return
        for uid, groups in self.people.items():
            if before.get(uid, ABOUT_BAND) != bands.get(uid, ABOUT_BAND):
                for group in groups:
                    self._leave(group)
                    self._enter(group)
                    self._push(group)

    def standing(self, group: Group) -> tuple[tuple[int, ...], Entry]:
        """Where this group stands in the order of start."""
        return group.lane.place, self._entry(group)

    def _entry(self, group: Group) -> Entry:
        head = group.head()
        assert head is not None
        return Entry(group.rank, head, group.number, group)

    def _push(self, group: Group) -> None:
        entry = self._entry(group)
        if entry != group.entry:
            group.entry = entry
            group.lane.list(entry)
        head = entry.head
        age = Age(group.members[head], head, group.number, group)
        if age != group.age:
            group.age = age
            kind = (group.key.priority, group.key.shape.gpus > 0)
            ages = self.ages.setdefault(kind, [])
            heapq.heappush(ages, age)
            if len(ages) > MOST_STALE + 2 * len(self.groups):  # where nobody asks for the oldest
                self.ages[kind] = sorted(age for age in ages if age.group.age is age)

    def oldest(self, kind: AgeKind) -> Age | None:
        """Who of this kind has waited longest."""
        ages = self.ages[kind]
        while ages:
            age = ages[0]
            if age.group.age is age:
                return age
            heapq.heappop(ages)
        del self.ages[kind]
        return None

    def take_oldest(self, kind: AgeKind) -> Age | None:
        """The same, and the next one after it the next time, until all are put back."""
        ages = self.ages[kind]
        while ages:
            age = heapq.heappop(ages)
            if age.group.age is age:
                return age
        return None

    def put_back(self, kind: AgeKind, taken: list[Age]) -> None:
        for age in taken:
            heapq.heappush(self.ages[kind], age)


class Walk:
    """A pass over the queue in order. A group that may not start is set aside until the pass ends."""

    def __init__(self, queue: ReadyQueue) -> None:
        self._queue = queue
        self._aside: list[tuple[Lane, Entry]] = []
        # Lanes of which only these are still looked at, the first of them last.
        self._closed: dict[LaneKey, list[Entry]] = {}

    def next(self, room: Room) -> JobKey | None:
        """The first job, in order, of a lane that may fit into `room`."""
        best: Entry | None = None
        place: tuple[int, ...] = ()
        closed = self._closed
        for lane in self._queue.lanes.values():
            if lane.may_fit(room):
                if closed and (left := closed.get(lane.key)) is not None:
                    entry = left[-1] if left else None
                else:
                    entry = lane.first()
                if entry is not None and (best is None or (lane.place, entry) < (place, best)):
                    best, place = entry, lane.place
        return best.head if best else None

    def skip(self, job: Job) -> None:
        """This job may not start, so nothing of its group may."""
        lane = self._queue.group_of(job).lane
        left = self._closed.get(lane.key)
        if left is not None:
            left.pop()
        else:
            self._aside.append((lane, heapq.heappop(lane.entries)))

    def skip_lane(self, job: Job, promises: Iterable[Promise], *, in_order: bool) -> None:
        """Nor may any that comes after it in its lane, but those that are promised their start themselves.

        `in_order`: those that come later take longer. Else a lane with promises is looked at one by one.
        """
        where = self._queue.where
        group = where[job.key]
        lane, entry = group.lane, group.entry
        if lane.key in self._closed:
            self.skip(job)
            return
        assert entry is not None
        promised = [where[promise.key].entry for promise in promises if where[promise.key].lane is lane]
        if promised and not in_order:
            self.skip(job)
        else:
            later = [one for one in promised if one is not None and one > entry]
            self._closed[lane.key] = sorted(later, reverse=True)

    def again(self) -> Walk:
        """The same from the start."""
        self.close()
        return Walk(self._queue)

    def close(self) -> None:
        for lane, entry in self._aside:
            if entry.group.entry is entry:
                heapq.heappush(lane.entries, entry)


def group_key(job: Job) -> GroupKey:
    spec = job.spec
    return GroupKey(
        spec.priority,
        spec.preemptible,
        job.uid,
        spec.shape,
        spec.group,
        spec.max_concurrent,
        spec.project,
        what_of(spec),
        int(job.submitted_at // DAY_S),
        spec.time_limit_s,
    )


def _discard(table: dict[Any, set[Group]], name: Any, group: Group) -> None:
    """Out of a set that is not kept when it is empty."""
    table[name].discard(group)
    if not table[name]:
        del table[name]
