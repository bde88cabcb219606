"""When running jobs are expected to be over, soonest first; kept up as jobs start, end and outlast it."""

from __future__ import annotations

from bisect import bisect_left, insort

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.resources import slots_of


class Leaver:
    """What a running job leaves behind when it ends. None of it changes while it runs."""

    __slots__ = ("cpus", "end", "gpu_ids", "key", "memory_mib", "shared")

    def __init__(self, job: Job) -> None:
        spec = job.spec
        self.key = job.key
        self.cpus = slots_of(spec)
        self.memory_mib = spec.memory_mib
        self.gpu_ids = job.gpu_ids
        # Whether others may be on its GPUs.
        self.shared = spec.shared
        # When it is expected to be over.
        self.end = 0.0


class Timetable:
    """Expected ends in order. A change costs O(log n) and a shift of memory."""

    def __init__(self) -> None:
        # A job is there once, so that two that leave are never compared.
        self.line: list[tuple[float, JobKey, Leaver]] = []
        self._leavers: dict[JobKey, Leaver] = {}

    def put(self, job: Job, end: float) -> None:
        """This job is expected to be over then, whatever was expected before."""
        key = job.key
        leaver = self._leavers.get(key)
        if leaver is None:
            leaver = self._leavers[key] = Leaver(job)
        elif leaver.end == end:
            return
        else:
            del self.line[bisect_left(self.line, (leaver.end, key))]
        leaver.end = end
        insort(self.line, (end, key, leaver))

    def remove(self, key: JobKey) -> None:
        leaver = self._leavers.pop(key, None)
        if leaver is not None:
            del self.line[bisect_left(self.line, (leaver.end, key))]
