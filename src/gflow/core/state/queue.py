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
from typing import TYPE_CHECKING, Any, Final

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.resources import INFINITE, Shape, named, shape_of
from gflow.core.state.fair_share import ABOUT_BAND
from gflow.core.state.queue_index import (
    MOST_STALE,
    Ages,
    Entry,
    Group,
    GroupKey,
    Lane,
    LaneKey,
    Room,
    place_of,
)
from gflow.core.state.runtime_estimates import SPAN_S, Batch, History, what_of

if TYPE_CHECKING:
    from gflow.core.state.start_reservations import StartReservation

# Limits are generous: of a job's waiting, this part of its limit is counted as its length.
LIMITS_COUNT: Final = 0.18
# Standing (see `Spec.standing`), and whether it asks for GPUs: who is oldest is judged apart.
AgeKind = tuple[int, bool]


class ReadyQueue:
    """All groups, and their order within each lane."""

    def __init__(self, history: History, *, by_length: bool, use_history: bool) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        # Where each job waits.
        self.where: dict[JobKey, Group] = {}
        # Who waits, with their groups; and the band of each (see `core.state.fair_share`).
        self.people: dict[int, set[Group]] = {}
        self.bands: dict[int, int] = {}
        self.ages: dict[AgeKind, Ages] = {}
        self._history = history
        self._by_length = by_length
        self._use_history = use_history
        self._of_batch: dict[Batch, set[Group]] = {}
        # How many groups there have been, and how many stamps.
        self._made = self._stamps = 0

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
        return job.spec.shape if group is None else group.shape

    # ------------------------------------------------------------ in and out

    def add(self, job: Job) -> Group:
        key = group_key(job)
        group = self.groups.get(key)
        if group is None:
            group = self._new_group(key)
        before, number = group.head(), job.key
        group.add(number, job.ready_at)
        self.where[number] = group
        if before is None or number < before:
            self._push(group, number)
        return group

    def remove(self, job: Job) -> None:
        group = self.where.pop(job.key, None)
        if group is None:
            return
        was_head = group.head() == job.key
        group.remove(job.key)
        head = group.head()
        if head is None:
            self._drop_group(group)
        elif was_head:
            self._push(group, head)

    def _new_group(self, key: GroupKey) -> Group:
        batch = self._history.batch((key.uid, key.what, key.shape.gpus), key.span)
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
        group.aged = 0

    def _enter(self, group: Group) -> None:
        """Into the lane that its owner's band makes it one of."""
        shape, band = group.shape, self.bands.get(group.key.uid, ABOUT_BAND)
        place = place_of(group.standing, band)
        key = (place, shape.gpus, shape.shared, shape.gpu_type, shape.gpu_memory_mib)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key)
        group.lane = lane
        lane.groups += 1
        lane.guessed += group.guess < INFINITE
        lane.cpus.add(shape.cpus)
        lane.memory.add(shape.memory_mib)

    def _leave(self, group: Group) -> None:
        lane, shape = group.lane, group.shape
        group.listed = 0
        lane.groups -= 1
        lane.guessed -= group.guess < INFINITE
        lane.cpus.remove(shape.cpus)
        lane.memory.remove(shape.memory_mib)
        if not lane.groups:
            del self.lanes[lane.key]

    # ------------------------------------------------------------ order

    def expected_s(self, job: Job) -> float:
        """How long a job that waits or runs is expected to take."""
        return min(self.known_of(job))

    def surely_s(self, job: Job) -> float:
        """Within which time a waiting job will be over, as far as anybody can know: its limit, or history."""
        if job.spec.time_limit_s or self.where[job.key].batch.is_known:
            return self.expected_s(job)
        return INFINITE

    def known_of(self, job: Job) -> tuple[float, float]:
        """How long a job may run, and how long it probably does by what is known: see `Group`."""
        group = self.where.get(job.key)
        if group is not None:
            return group.bound, group.guess
        limit = job.spec.time_limit_s
        return limit or INFINITE, self.guess(limit, self._history.batch_of(job))

    def length(self, limit_s: int, batch: Batch) -> float:
        """How long such a job is expected to take: its limit bounds what history says."""
        guess = self.guess(limit_s, batch)
        return limit_s if 0 < limit_s < guess else guess

    def guess(self, limit_s: int, batch: Batch) -> float:
        """What history says of such a job. A limit says more than what other work of that many GPUs took (and
        of course than nothing), and less than what the same work took."""
        if not self._use_history or (limit_s and not (batch.kind[1] and batch.is_known)):
            return INFINITE
        return batch.length

    def _set_length(self, group: Group) -> None:
        limit = group.key.limit_s
        group.bound = limit or INFINITE
        group.guess = self.guess(limit, group.batch)
        group.length = min(group.bound, group.guess)
        group.counted = min(group.guess, LIMITS_COUNT * group.bound)
        # Wide jobs cost others more: four GPUs count as if the job took twice as long.
        group.rank = group.length * sqrt(group.shape.gpus or 1) if self._by_length else 0.0

    def refresh(self) -> None:
        """Take in what history has learnt since."""
        changed, self._history.changed = self._history.changed, set()
        for batch in changed:
            for group in self._of_batch.get(batch, ()):
                before, was_guessed = group.rank, group.guess < INFINITE
                self._set_length(group)
                group.lane.guessed += (group.guess < INFINITE) - was_guessed
                if group.rank != before:
                    self._list(group)

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
                    self._list(group)

    def standing(self, group: Group) -> tuple[int, Entry]:
        """Where this group stands in the order of start."""
        head = group.head()
        assert head is not None
        return group.lane.place, (group.rank, head, group.listed, group)

    def _push(self, group: Group, head: JobKey) -> None:
        """This is its first job now."""
        self._stamps += 1
        stamp = group.listed = group.aged = self._stamps
        group.lane.list((group.rank, head, stamp, group))
        kind = (group.standing, group.shape.gpus > 0)
        ages = self.ages.get(kind)
        if ages is None:
            ages = self.ages[kind] = Ages()
        ages.add((group.members[head], head, stamp, group))
        if len(ages) > MOST_STALE + 2 * len(self.groups):  # where nobody asks for the oldest
            ages.tidy()

    def _list(self, group: Group) -> None:
        """It belongs elsewhere in its lane by now, or into another lane."""
        head = group.head()
        assert head is not None
        self._stamps += 1
        group.listed = self._stamps
        group.lane.list((group.rank, head, group.listed, group))


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
        place, idle, closed = 0, room.idle_gpus, self._closed
        for lane in self._queue.lanes.values():
            # Most lanes ask for too many GPUs: that is seen without a call.
            if (lane.gpus > idle and not lane.shared) or not lane.may_fit(room):
                continue
            if closed and (left := closed.get(lane.key)) is not None:
                entry = left[-1] if left else None
            else:
                entry = lane.first()
            if entry is not None and (
                best is None or lane.place < place or (lane.place == place and entry < best)
            ):
                best, place = entry, lane.place
        return None if best is None else best[1]

    def skip(self, job: Job) -> None:
        """This job may not start, so nothing of its group may."""
        lane = self._queue.group_of(job).lane
        left = self._closed.get(lane.key)
        if left is not None:
            left.pop()
        else:
            self._aside.append((lane, heapq.heappop(lane.entries)))

    def skip_lane(self, job: Job, promises: Iterable[StartReservation]) -> None:
        """Nor may any that comes after it in its lane, but those that are promised their start themselves.

        Those that come later are expected to take longer. But what is guessed is taken for less beside a
        promise, and a limit is not: behind one with a limit, one without may still pass.
        """
        group = self._queue.where[job.key]
        lane = group.lane
        if lane.key in self._closed or (lane.guessed and group.guess > group.bound):
            self.skip(job)
            return
        here = self._queue.standing(group)
        places = [self._queue.standing(one.group) for one in promises if one.group.lane is lane]
        self._closed[lane.key] = sorted((place[1] for place in places if place > here), reverse=True)

    def again(self) -> Walk:
        """The same from the start."""
        self.close()
        return Walk(self._queue)

    def close(self) -> None:
        for lane, entry in self._aside:
            if entry[3].listed == entry[2]:
                heapq.heappush(lane.entries, entry)


def group_key(job: Job) -> GroupKey:
    spec = job.spec
    span = int(job.submitted_at // SPAN_S)
    key: GroupKey = named(
        GroupKey,
        (
            spec.priority,
            spec.preemptible,
            job.uid,
            shape_of(spec),
            spec.group,
            spec.max_concurrent,
            spec.project,
            what_of(spec),
            span,
            spec.time_limit_s,
            spec.grace_s if spec.time_limit_s else 0,
        ),
    )
    return key


def _discard(table: dict[Any, set[Group]], name: Any, group: Group) -> None:
    """Out of a set that is not kept when it is empty."""
    table[name].discard(group)
    if not table[name]:
        del table[name]
