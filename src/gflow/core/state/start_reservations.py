"""Start reservations: when a waiting job is expected to start, and what backfilled jobs must leave free."""

from __future__ import annotations

from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.resources import Shape
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
        "precedence",
        "spare",
        "start_at",
    )

    def __init__(
        self, key: JobKey, group: Group, now: float, start_at: float, caution: float, free: Availability
    ) -> None:
        self.key, self.group = key, group
        self.precedence = group.precedence
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

    def blocks(self, job: Job) -> bool:
        """Whether this job must not delay the reservation. Jobs of higher precedence may."""
        return job.spec.precedence <= self.precedence

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

    def allows(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> bool:
        """Whether a job that starts now on these GPUs ends by `start_at`, or uses only spare resources."""
        return self.now + length <= self.start_at or (
            not self.needs_any(gpu_ids)
            and shape.cpus <= max(0, self.cpus)
            and shape.memory_mib <= max(0, self.memory_mib)
        )

    def take(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> None:
        """Subtract the resources of a job that has started and runs beyond `start_at`."""
        if self.now + length > self.start_at:
            gpus = self.gpus
            self._gpus = gpus.difference(gpu_ids)
            self.spare -= len(gpus) - len(self._gpus)
            self.cpus -= shape.cpus
            self.memory_mib -= shape.memory_mib
