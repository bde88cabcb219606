"""When running jobs are expected to be over, soonest first; kept up as jobs start, end and outlast it."""

from __future__ import annotations

from bisect import bisect_left, insort

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.resources import slots_of


class EndingJob:
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


class EndTimes:
    """Expected ends in order. A change costs O(log n) and a shift of memory."""

    def __init__(self) -> None:
        # A job is there once, so that two that leave are never compared.
        self.entries: list[tuple[float, JobKey, EndingJob]] = []
        self._ending: dict[JobKey, EndingJob] = {}

    def put(self, job: Job, end: float) -> None:
        """This job is expected to be over then, whatever was expected before."""
        key = job.key
        ending = self._ending.get(key)
        if ending is None:
            ending = self._ending[key] = EndingJob(job)
        elif ending.end == end:
            return
        else:
            del self.entries[bisect_left(self.entries, (ending.end, key))]
        ending.end = end
        insort(self.entries, (end, key, ending))

    def remove(self, key: JobKey) -> None:
        ending = self._ending.pop(key, None)
        if ending is not None:
            del self.entries[bisect_left(self.entries, (ending.end, key))]
