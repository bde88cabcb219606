"""The ready queue: jobs that wait only for resources, grouped so that a round never scans all of them.

Jobs of one user, priority, shape, cap and expected length are an equivalence class, here a group: the
scheduler treats them alike except for their order of arrival. If the first cannot start, none can, so that a
round examines only the head of each group. Groups are kept in buckets: one per precedence, band of fair
share, and kind and number of GPUs. A bucket whose smallest request exceeds the free resources is skipped.
Within a bucket the shortest jobs come first.

Cost: add and remove O(log n); a round O(buckets + groups examined + jobs started).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import sqrt
from typing import TYPE_CHECKING, Any, Final

from gflow.core.ids import JobKey
from gflow.core.key_table import KeyTable
from gflow.core.model import Job
from gflow.core.resources import INFINITE, Shape, make_tuple, shape_of
from gflow.core.state.fair_share import UNDER_BAND
from gflow.core.state.machine import Machine
from gflow.core.state.queue_index import (
    MOST_STALE,
    Bucket,
    BucketKey,
    Entry,
    Group,
    GroupKey,
    OldestFirst,
    Room,
    place_of,
)
from gflow.core.state.runtime_estimates import SPAN_S, Batch, Kind, RuntimeEstimates

if TYPE_CHECKING:
    from gflow.core.state.start_reservations import StartReservation

# Users set generous limits: this part of the limit counts as the job's length when patience is measured.
LIMITS_COUNT: Final = 0.18
# Place (see `place_of`), whether the job asks for GPUs, and the number of their type (`Machine.type_number`):
# each has its own oldest-first index.
AgeKind = tuple[int, bool, int]


class ReadyQueue:
    """All groups of waiting jobs, their buckets, and the oldest-first indexes."""

    def __init__(self, estimates: RuntimeEstimates, machine: Machine, *, by_length: bool) -> None:
        self.groups: dict[GroupKey, Group] = {}
        self.buckets: dict[BucketKey, Bucket] = {}
        # The group of each waiting job.
        self.where: KeyTable[Group] = KeyTable()
        # uid -> groups of this user; uid -> band of fair share (see `core.state.fair_share`).
        self.people: dict[int, set[Group]] = {}
        self.bands: dict[int, int] = {}
        self.ages: dict[AgeKind, OldestFirst] = {}
        self._estimates, self._machine = estimates, machine
        self._by_length = by_length
        self._of_batch: dict[Batch, set[Group]] = {}
        # The last group number and the last generation that were given out.
        self._last_group = self._last_generation = 0

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, job: Job) -> bool:
        return job.key in self.where

    def group_of(self, job: Job) -> Group:
        """The group in which this job waits."""
        return self.where[job.key]

    def shape_of(self, job: Job) -> Shape:
        """The shape of a job. For a job in the queue it is cached in the group."""
        group = self.where.get(job.key)
        return job.spec.shape if group is None else group.shape

    # ------------------------------------------------------------ in and out

    def add(self, job: Job) -> Group:
        key = group_key(job, self._estimates.kind_of(job))
        group = self.groups.get(key)
        if group is None:
            group = self._new_group(key)
        before, number = group.head(), job.key
        group.add(number, job.ready_at)
        self.where[number] = group
        if before is None or number < before:
            self._push(group)
        return group

    def remove(self, job: Job) -> None:
        group = self.where.get(job.key)
        if group is None:
            return
        del self.where[job.key]
        was_head = group.head() == job.key
        group.remove(job.key)
        if not group.members:
            self._drop_group(group)
        elif was_head:
            self._push(group)

    def _new_group(self, key: GroupKey) -> Group:
        batch = self._estimates.batch((key.uid, key.what, key.shape.gpus), key.span)
        if not batch.waiting:
            self._estimates.look_at(batch)
        batch.waiting += 1
        self._last_group += 1
        group = self.groups[key] = Group(key, batch, self._last_group)
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
        group.age_generation = 0

    def _enter(self, group: Group) -> None:
        """Add a group to its bucket, which depends on the band of its user."""
        shape, band = group.shape, self.bands.get(group.key.uid, UNDER_BAND)
        place = place_of(group.precedence, band)
        key = (place, shape.gpus, shape.shared, shape.gpu_type, shape.gpu_memory_mib)
        bucket = self.buckets.get(key)
        if bucket is None:
            bucket = self.buckets[key] = Bucket(key)
        group.bucket = bucket
        bucket.groups += 1
        bucket.cpus.add(shape.cpus)
        bucket.memory.add(shape.memory_mib)
        bucket.longest.add(group.longest_s)

    def _leave(self, group: Group) -> None:
        bucket, shape = group.bucket, group.shape
        group.bucket_generation = 0
        bucket.groups -= 1
        bucket.cpus.remove(shape.cpus)
        bucket.memory.remove(shape.memory_mib)
        bucket.longest.remove(group.longest_s)
        if not bucket.groups:
            del self.buckets[bucket.key]

    # ------------------------------------------------------------ order

    def expected_s(self, job: Job) -> float:
        """How long a waiting or running job is expected to run in all."""
        return min(self.runtime_bounds(job))

    def longest_s(self, job: Job) -> float:
        """How long a job may run, judged by its limit and the longest run of its kind."""
        group = self.where.get(job.key)
        if group is not None:
            return group.longest_s
        return self._estimates.longest(job.spec.time_limit_s, self._estimates.batch_of(job))

    def runtime_bounds(self, job: Job) -> tuple[float, float]:
        """The time limit and the runtime estimate of a job (infinite: none); see `Group`."""
        group = self.where.get(job.key)
        if group is not None:
            return group.limit_s, group.estimated_s
        limit = job.spec.time_limit_s
        return limit or INFINITE, self._estimates.estimate(limit, self._estimates.batch_of(job))

    def _set_length(self, group: Group) -> None:
        limit = group.key.limit_s
        group.limit_s = limit or INFINITE
        group.estimated_s = self._estimates.estimate(limit, group.batch)
        group.length = min(group.limit_s, group.estimated_s)
        group.longest_s = self._estimates.longest(limit, group.batch)
        group.patience_basis_s = min(group.estimated_s, LIMITS_COUNT * group.limit_s)
        # Wide jobs cost other jobs more: with four GPUs, a job counts as twice as long.
        group.sort_key = group.length * sqrt(group.shape.gpus or 1) if self._by_length else 0.0

    def refresh(self) -> None:
        """Apply the runtime estimates and longest runs that changed since the last call."""
        changed, self._estimates.changed = self._estimates.changed, set()
        for batch in changed:
            for group in self._of_batch.get(batch, ()):
                before = group.sort_key
                group.bucket.longest.remove(group.longest_s)
                self._set_length(group)
                group.bucket.longest.add(group.longest_s)
                if group.sort_key != before:
                    self._list(group)

    def set_bands(self, bands: dict[int, int]) -> None:
        """Replace the bands of users and move their groups. A user without an entry is in band `under`."""
        before, self.bands = self.bands, bands
        if before == bands:
            return
        for uid, groups in self.people.items():
            if before.get(uid, UNDER_BAND) != bands.get(uid, UNDER_BAND):
                for group in groups:
                    self._leave(group)
                    self._enter(group)
                    self._push(group)

    def age_kind_of(self, group: Group) -> AgeKind:
        """The oldest-first index of this group. All spellings of a type of GPU have the same."""
        has_gpus = group.gpus > 0
        return (
            group.bucket.place,
            has_gpus,
            self._machine.type_number(group.shape.gpu_type) if has_gpus else 0,
        )

    def rebuild_ages(self) -> None:
        """Enter all groups into the oldest-first indexes again, after the GPUs have changed."""
        self.ages.clear()
        for group in self.groups.values():
            self._push(group)

    def age_kinds(self) -> list[AgeKind]:
        """The kinds of waiting jobs in the order of their places. Empty indexes are dropped."""
        for kind in [kind for kind, ages in self.ages.items() if ages.at(0) is None]:
            del self.ages[kind]
        return sorted(self.ages)

    def place_of(self, job: Job) -> int:
        """The place of a job in the order of buckets (see `place_of`), whether it waits or not."""
        group = self.where.get(job.key)
        if group is not None:
            return group.bucket.place
        return place_of(job.spec.precedence, self.bands.get(job.uid, UNDER_BAND))

    def position_of(self, group: Group) -> tuple[int, Entry]:
        """The position of this group in the order of start, as a sort key."""
        head = group.head()
        assert head is not None
        return group.bucket.place, (group.sort_key, head, group.bucket_generation, group)

    def _push(self, group: Group) -> None:
        """Enter a group whose head has changed into its bucket and into the oldest-first index."""
        head = self._list(group)
        generation = group.age_generation = group.bucket_generation
        kind = self.age_kind_of(group)
        ages = self.ages.get(kind)
        if ages is None:
            ages = self.ages[kind] = OldestFirst()
        ages.add((group.members[head], head, generation, group))
        if len(ages) > MOST_STALE + 2 * len(self.groups):  # stale entries, if no round asks for the oldest
            ages.compact()

    def _list(self, group: Group) -> JobKey:
        """Enter a group into its bucket, with a new generation; its head."""
        head = group.head()
        assert head is not None
        self._last_generation += 1
        group.bucket_generation = self._last_generation
        group.bucket.list((group.sort_key, head, group.bucket_generation, group))
        return head


class Walk:
    """A pass over the queue in order. A group that cannot start is set aside until the pass ends."""

    def __init__(self, queue: ReadyQueue) -> None:
        self._queue = queue
        self._aside: list[tuple[Bucket, Entry]] = []
        # Skipped buckets -> entries that are still examined, in reverse order.
        self._closed: dict[BucketKey, list[Entry]] = {}

    def next(self, room: Room) -> JobKey | None:
        """The first job, in order, of the buckets that may fit into `room`."""
        best: Entry | None = None
        place, idle, closed = 0, room.idle_gpus, self._closed
        for bucket in self._queue.buckets.values():
            # Most buckets ask for too many GPUs: check that first, without a call.
            if (bucket.gpus > idle and not bucket.shared) or not bucket.may_fit(room):
                continue
            if closed and (left := closed.get(bucket.key)) is not None:
                entry = self._first_left(left)
            else:
                entry = bucket.first()
            if entry is not None and (
                best is None or bucket.place < place or (bucket.place == place and entry < best)
            ):
                best, place = entry, bucket.place
        return None if best is None else best[1]

    def _first_left(self, left: list[Entry]) -> Entry | None:
        """The first of the entries of a skipped bucket. A group whose head has started has a new one."""
        while left:
            entry = left[-1]
            group = entry[3]
            if group.bucket_generation == entry[2]:
                return entry
            left.pop()
            if group.members:
                left.append(self._queue.position_of(group)[1])
                left.sort(reverse=True)
        return None

    def skip(self, job: Job) -> None:
        """Set the group of this job aside: if its head cannot start, none of it can."""
        bucket = self._queue.group_of(job).bucket
        left = self._closed.get(bucket.key)
        if left is not None:
            left.pop()
        else:
            self._aside.append((bucket, heapq.heappop(bucket.entries)))

    def skip_refused(
        self, job: Job, refusing: StartReservation, reservations: Iterable[StartReservation]
    ) -> None:
        """Skip this job, which a reservation refused, and all later ones of its bucket that it refuses, too.

        They would get the same GPUs, and are expected to run for at least as long as this job. None of them
        ends in time if that is too long, or if the longest run of no kind in the bucket is short enough. Jobs
        of the user of the reservation may end in time nevertheless, as only a part of their estimates counts,
        and jobs that have reservations themselves may start: these are still examined.
        """
        group = self._queue.where[job.key]
        bucket = group.bucket
        at_least = max(bucket.longest.value, group.length)
        if bucket.key in self._closed or refusing.ends_before(at_least):
            self.skip(job)
            return
        left = {one.group for one in reservations if one.group.bucket is bucket}
        if refusing.ends_before(refusing.caution * group.length):
            mine = self._queue.people.get(refusing.group.key.uid, ())
            left.update(
                one
                for one in mine
                if one.bucket is bucket
                and refusing.ends_before(min(one.limit_s, refusing.caution * one.estimated_s))
            )
        here = self._queue.position_of(group)
        places = [self._queue.position_of(one) for one in left]
        self._closed[bucket.key] = sorted((place[1] for place in places if place > here), reverse=True)

    def restart(self) -> Walk:
        """End this pass and begin another."""
        self.close()
        return Walk(self._queue)

    def close(self) -> None:
        for bucket, entry in self._aside:
            if entry[3].bucket_generation == entry[2]:
                heapq.heappush(bucket.entries, entry)


def group_key(job: Job, kind: Kind) -> GroupKey:
    spec = job.spec
    span = int(job.submitted_at // SPAN_S)
    key: GroupKey = make_tuple(
        GroupKey,
        (
            spec.priority,
            spec.preemptible,
            job.uid,
            shape_of(spec),
            spec.group,
            spec.max_concurrent,
            spec.project,
            kind[1],
            span,
            spec.time_limit_s,
            spec.grace_s if spec.time_limit_s else 0,
        ),
    )
    return key


def _discard(table: dict[Any, set[Group]], name: Any, group: Group) -> None:
    """Remove a group from a set of the table; an empty set is deleted."""
    table[name].discard(group)
    if not table[name]:
        del table[name]
