"""Expected end times of running jobs, soonest first. Updated when a job starts, ends or exceeds it."""

from __future__ import annotations

from bisect import bisect_left, insort

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.resources import slots_of


class EndingJob:
    """The resources that a running job frees when it ends. They do not change while it runs."""

    __slots__ = ("cpus", "end", "gpu_ids", "key", "memory_mib", "shared")

    def __init__(self, job: Job) -> None:
        spec = job.spec
        self.key = job.key
        self.cpus = slots_of(spec)
        self.memory_mib = spec.memory_mib
        self.gpu_ids = job.gpu_ids
        # Whether other jobs may use its GPUs too.
        self.shared = spec.shared
        # The expected end (boot clock).
        self.end = 0.0


class EndTimes:
    """Expected ends, sorted. A change costs O(log n) and one move of list memory."""

    def __init__(self) -> None:
        # One entry per job, so that two `EndingJob`s are never compared.
        self.entries: list[tuple[float, JobKey, EndingJob]] = []
        self._ending: dict[JobKey, EndingJob] = {}

    def put(self, job: Job, end: float) -> None:
        """Set or change the expected end of a job."""
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
