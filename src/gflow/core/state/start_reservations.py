"""Start reservations: when a waiting job is expected to start, and what backfilled jobs must leave free."""

from __future__ import annotations

from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Moment
from gflow.core.resources import INFINITE, Shape
from gflow.core.state.queue_index import Group


class Availability(NamedTuple):
    """Resources that are free at one time: the first `gpu_count` of these GPUs, CPUs and memory."""

    gpus: list[int]
    gpu_count: int
    cpus: int
    memory_mib: int


class StartReservation:
    """The start that is kept free for one waiting job: its time, and the resources available then."""

    __slots__ = (
        "_free_gpus",
        "_gpu_count",
        "_gpus",
        "caution",
        "cpus",
        "group",
        "key",
        "memory_mib",
        "now",
        "place",
        "spare",
        "start_at",
    )

    def __init__(
        self,
        key: JobKey,
        group: Group,
        now: float,
        start_at: float,
        caution: float,
        free: Availability,
        *,
        is_due: bool = True,
    ) -> None:
        self.key, self.group = key, group
        # Jobs before this place in the order of buckets are not bound. Until the job has waited enough, those
        # of its own place are not bound either.
        self.place = group.bucket.place + (not is_due)
        # Fraction of the runtime estimate that a job which would backfill is assumed to take.
        self.caution = caution
        # When the reservation was last updated, and when the job is expected to start (boot clock).
        self.now = now
        self.start_at = start_at
        # GPUs available at `start_at` (see `gpus`), how many of them the job does not need, and the CPU slots
        # and the memory that it leaves.
        self._free_gpus, self._gpu_count, cpus, memory_mib = free
        self._gpus: frozenset[int] | None = None
        self.spare = self._gpu_count - group.gpus
        self.cpus = cpus - group.cpus
        self.memory_mib = memory_mib - group.memory_mib

    @property
    def gpus(self) -> frozenset[int]:
        """GPUs available at `start_at`. Computed lazily: most reservations are never queried."""
        found = self._gpus
        if found is None:
            found = self._gpus = frozenset(self._free_gpus[: self._gpu_count])
        return found

    def blocks(self, place: int) -> bool:
        """Whether jobs at this place must not delay the reservation. Those of a higher priority, or of users
        who used less, may; until the reservation is due, those of its own place, too."""
        return place >= self.place

    def needs_any(self, gpu_ids: tuple[int, ...]) -> bool:
        """Whether the reserved job needs at least one of these GPUs."""
        spare = self.spare
        if len(gpu_ids) <= spare:
            return False
        gpus = self.gpus
        for index in gpu_ids:  # usually one or two: a loop is faster than a set
            if index in gpus:
                spare -= 1
        return spare < 0

    def ends_before(self, length: float) -> bool:
        """Whether a job of this length that starts now ends by `start_at`."""
        return self.now + length <= self.start_at

    def allows(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> bool:
        """Whether a job that starts now on these GPUs ends by `start_at`, or uses only spare resources."""
        return self.ends_before(length) or (
            not self.needs_any(gpu_ids)
            and shape.cpus <= max(0, self.cpus)
            and shape.memory_mib <= max(0, self.memory_mib)
        )

    def take(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> None:
        """Subtract the resources of a job that has started and runs beyond `start_at`."""
        if not self.ends_before(length):
            gpus = self.gpus
            self._gpus = gpus.difference(gpu_ids)
            self.spare -= len(gpus) - len(self._gpus)
            self.cpus -= shape.cpus
            self.memory_mib -= shape.memory_mib


class StartReservations:
    """The start reservations of jobs that have waited long enough, as of the latest round."""

    __slots__ = ("at", "entries")

    def __init__(self) -> None:
        self.entries: list[StartReservation] = []
        # The time of that round. No decision depends on it: `core.invariants` repeats the round.
        self.at = Moment(0.0, 0.0)

    def pass_time(self, at: Moment) -> None:
        """Bring the reservations to the time of a round that keeps them."""
        self.at = at
        now = at.boot
        for one in self.entries:
            if one.now < now:
                one.now = now

    def has(self, key: JobKey) -> bool:
        """Whether this job has a start reservation."""
        return any(one.key == key for one in self.entries)

    def is_late(self, now: float) -> bool:
        """Whether a reserved start has passed: a running job outlived its estimate."""
        return any(one.now < one.start_at <= now for one in self.entries)

    def next_start(self) -> float | None:
        """The boot time of the next reserved start."""
        first = INFINITE
        for one in self.entries:
            if one.now < one.start_at < first:
                first = one.start_at
        return first if first < INFINITE else None
