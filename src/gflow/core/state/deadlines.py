"""Deadlines of jobs: time limits, warnings before them, begin times, retries and overflow.

They are heaps with lazy deletion: a job that ends or changes leaves its entries behind, and the search for
the next deadline skips them.
"""

from __future__ import annotations

import heapq

from gflow.core.ids import JobKey
from gflow.core.key_table import KeySet, KeyTable
from gflow.core.model import Job, JobState, Moment
from gflow.core.reasons import WARNED


class Deadlines:
    """The deadlines of all jobs. Begin times are on the wall clock, all others on the boot clock."""

    def __init__(self, jobs: KeyTable[Job]) -> None:
        self._jobs = jobs
        # Jobs that wait for their begin time, or for the end of the pause before a retry.
        self.later = KeySet()
        # The latest begin time that has passed: if the wall clock is before it, it has been set back.
        self.latest_begin = 0.0
        # (boot time, job, attempt) and (wall time, job)
        self.limits: list[tuple[float, JobKey, int]] = []
        self.warnings: list[tuple[float, JobKey, int]] = []
        self.begins: list[tuple[float, JobKey]] = []
        # (boot time, job)
        self.retries: list[tuple[float, JobKey]] = []
        self.overflows: list[tuple[float, JobKey]] = []
        # The boot time at which failed starts are tried again; None: none failed.
        self.resume_at: float | None = None

    def set_limit(self, job: Job) -> None:
        """Enter when a running job reaches its time limit, and when to warn it."""
        if job.spec.time_limit_s and job.started_boot is not None:
            due = job.started_boot + job.spec.time_limit_s
            heapq.heappush(self.limits, (due, job.key, job.attempt))
            if job.spec.warning[0] and job.reason != WARNED:
                heapq.heappush(self.warnings, (due - job.spec.warning[1], job.key, job.attempt))

    def set_begin(self, job: Job, at: Moment) -> None:
        """Let a job wait until it may begin: its begin time, and the end of the pause before a retry."""
        self.later.add(job.key)
        if job.spec.begin_at > at.wall:
            heapq.heappush(self.begins, (job.spec.begin_at, job.key))
        if job.retry_boot > at.boot:
            heapq.heappush(self.retries, (job.retry_boot, job.key))

    def set_overflow(self, job: Job) -> None:
        """Enter when a job that waits here overflows to another target."""
        if (due := job.overflows_at) is not None:
            heapq.heappush(self.overflows, (due, job.key))

    def next_overflow(self) -> float | None:
        """The boot time at which the next job overflows."""
        while self.overflows:
            due, key = self.overflows[0]
            job = self._jobs.get(key)
            if job and job.overflows_at == due and key not in self.later:
                return due
            heapq.heappop(self.overflows)
        return None

    def next_limit(self) -> float | None:
        """The boot time at which the next time limit is reached."""
        while self.limits:
            due, key, attempt = self.limits[0]
            job = self._jobs.get(key)
            if job and _runs_until(job, due, attempt):
                return due
            heapq.heappop(self.limits)
        return None

    def next_warning(self) -> float | None:
        """The boot time at which the next job is to be warned."""
        while self.warnings:
            due, key, attempt = self.warnings[0]
            job = self._jobs.get(key)
            if job and job.reason != WARNED and _runs_until(job, due + job.spec.warning[1], attempt):
                return due
            heapq.heappop(self.warnings)
        return None

    def next_due(self) -> float | None:
        """The boot time of the next limit, warning, retry, overflow or new attempt of failed starts."""
        times = (
            self.next_limit(),
            self.next_warning(),
            self.next_retry(),
            self.next_overflow(),
            self.resume_at,
        )
        return min((at for at in times if at is not None), default=None)

    def next_begin(self) -> float | None:
        """The wall time at which the next job may begin."""
        while self.begins:
            due, key = self.begins[0]
            if key in self.later and self._jobs[key].spec.begin_at == due:
                return due
            heapq.heappop(self.begins)
        return None

    def next_retry(self) -> float | None:
        """The boot time at which the next pause before a retry is over."""
        while self.retries:
            due, key = self.retries[0]
            if key in self.later and self._jobs[key].retry_boot == due:
                return due
            heapq.heappop(self.retries)
        return None


def _runs_until(job: Job, due: float, attempt: int) -> bool:
    """Whether an entry of `limits` is still valid for this job."""
    return (
        job.state is JobState.RUNNING
        and job.attempt == attempt
        and job.stopping is None
        and job.started_boot is not None
        and job.started_boot + job.spec.time_limit_s == due
    )
