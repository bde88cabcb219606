"""All that the engine remembers. Rebuilt from the store by `restore`, never saved as a whole."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from gflow.core.ids import JobKey
from gflow.core.model import Gpu, Job, JobState
from gflow.core.queue import ReadyQueue

# How far back `@~N` reaches, per user.
RECENT = 1000


class State:
    """Active jobs and the machine. Final jobs live in the store only."""

    def __init__(self, *, cpus: int) -> None:
        self.jobs: dict[JobKey, Job] = {}
        self.next_number = 1
        self.cpus = cpus
        self.free_cpus = cpus
        self.gpus: dict[int, Gpu] = {}
        # GPU index -> the running job that has it.
        self.holders: dict[int, JobKey] = {}
        self.ready = ReadyQueue()
        # Waiting job -> parents that have not succeeded yet; and the same arrows backwards.
        self.parents: dict[JobKey, set[JobKey]] = {}
        self.children: dict[JobKey, set[JobKey]] = {}
        # uid -> that person's latest jobs, oldest first.
        self.recent: dict[int, deque[JobKey]] = {}
        # Jobs that ended since the last commit: out of `jobs`, not yet in the store.
        self.ended: dict[JobKey, JobState] = {}
        # (boot clock, job, attempt) at which a time limit is reached; stale entries are skipped.
        self.limits: list[tuple[float, JobKey, int]] = []

    def free_gpus(self) -> list[int]:
        """Indices of GPUs that nobody has, lowest first."""
        return [index for index in self.gpus if index not in self.holders]

    def remember_recent(self, uid: int, key: JobKey) -> None:
        self.recent.setdefault(uid, deque(maxlen=RECENT)).append(key)

    def book(self, job: Job) -> None:
        """Take the resources of a job that is about to run."""
        self.free_cpus -= job.spec.shape.cpus
        for index in job.gpu_ids:
            self.holders[index] = job.key
        if job.spec.time_limit_s and job.started_boot is not None:
            heapq.heappush(self.limits, (job.started_boot + job.spec.time_limit_s, job.key, job.attempt))

    def unbook(self, job: Job) -> None:
        """Give them back."""
        self.free_cpus += job.spec.shape.cpus
        for index in job.gpu_ids:
            del self.holders[index]

    def wait_for(self, job: Job, parents: Iterable[JobKey]) -> None:
        """`job` becomes ready only when each of `parents` has succeeded."""
        self.parents[job.key] = set(parents)
        for parent in self.parents[job.key]:
            self.children.setdefault(parent, set()).add(job.key)

    def next_due(self) -> float | None:
        """The boot time at which the engine wants its next Tick."""
        while self.limits:
            due, key, attempt = self.limits[0]
            job = self.jobs.get(key)
            if job and job.state is JobState.RUNNING and job.attempt == attempt and job.stopping is None:
                return due
            heapq.heappop(self.limits)
        return None


def restore(
    state: State,
    jobs: Iterable[Job],
    outcomes: dict[JobKey, JobState],
    recent: Iterable[tuple[int, JobKey]],
    next_number: int,
) -> None:
    """Fill an empty state from what the store has. `outcomes`: how final parents ended."""
    state.next_number = next_number
    for uid, key in recent:
        state.remember_recent(uid, key)
    for job in sorted(jobs, key=lambda job: job.key):
        state.jobs[job.key] = job
        if job.state is JobState.RUNNING:
            state.book(job)
        elif job.state is JobState.QUEUED:
            unmet = [key for key in job.spec.depends_on if outcomes.get(key) is not JobState.FINISHED]
            if unmet:
                state.wait_for(job, unmet)
            else:
                state.ready.add(job)
