"""A reserved start: when a waiting job is expected to start, and what backfilled jobs must leave for it."""

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
    """What one waiting job may count on: when, and what others must leave it then."""

    __slots__ = (
        "_count",
        "_gpus",
        "_line",
        "caution",
        "cpus",
        "group",
        "key",
        "memory_mib",
        "now",
        "spare",
        "standing",
        "until",
    )

    def __init__(
        self, key: JobKey, group: Group, now: float, until: float, caution: float, free: Availability
    ) -> None:
        self.key, self.group = key, group
        self.standing = group.standing
        # Which part of what is guessed of others counts.
        self.caution = caution
        # When this was looked at last, and when the job is expected to start.
        self.now = now
        self.until = until
        # GPUs it can have then (see `gpus`), how many of them it will not need, and what else is left over.
        self._line, self._count, cpus, memory_mib = free
        self._gpus: frozenset[int] | None = None
        self.spare = self._count - group.gpus
        self.cpus = cpus - group.cpus
        self.memory_mib = memory_mib - group.memory_mib

    @property
    def gpus(self) -> frozenset[int]:
        """GPUs it can have then. Of many promises nobody asks."""
        found = self._gpus
        if found is None:
            found = self._gpus = frozenset(self._line[: self._count])
        return found

    def binds(self, job: Job) -> bool:
        """Whether this job has to care."""
        return job.spec.standing <= self.standing

    def is_blocked(self, gpu_ids: tuple[int, ...]) -> bool:
        """Whether it will need some of these GPUs."""
        spare = self.spare
        if len(gpu_ids) <= spare:
            return False
        gpus = self.gpus
        for index in gpu_ids:  # most often there are one or two: then a loop beats sets
            if index in gpus:
                spare -= 1
        return spare < 0

    def allows(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> bool:
        """Whether a job with these GPUs would be over in time, or in nobody's way."""
        return self.now + length <= self.until or (
            not self.is_blocked(gpu_ids)
            and shape.cpus <= max(0, self.cpus)
            and shape.memory_mib <= max(0, self.memory_mib)
        )

    def take(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> None:
        """Such a job has started."""
        if self.now + length > self.until:
            gpus = self.gpus
            self._gpus = gpus.difference(gpu_ids)
            self.spare -= len(gpus) - len(self._gpus)
            self.cpus -= shape.cpus
            self.memory_mib -= shape.memory_mib
