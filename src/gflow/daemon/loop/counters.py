"""Counters for /metrics, maintained incrementally so that a scrape is O(1) in the queue length."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from gflow.core.ids import JobKey
from gflow.core.model import ACTIVE, FINAL, AuditEntry, Job, JobState
from gflow.store.port import Changes

# Histogram buckets, upper bounds in seconds: for parts of a turn, and for wait and run times of jobs.
QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0)
# Audit events that are counted by user. Users beyond the first MAX_USERS are counted as "other".
COUNTED = ("submitted", *(state.row.entry for state in JobState if state in FINAL))
MAX_USERS = 200
OTHER = "other"


class Histogram:
    """Number of observations in each bucket, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Meters:
    """Counters since the start of this daemon, and sets of the few jobs that neither run nor wait."""

    def __init__(self) -> None:
        # By (audit event, user).
        self.users: Counter[tuple[str, str]] = Counter()
        self._names: set[str] = set()
        self.waited, self.ran = Histogram(LONG), Histogram(LONG)
        # By part of a turn of the loop.
        self.turns = {"step": Histogram(QUICK), "commit": Histogram(QUICK)}
        # Jobs in the active states other than Queued and Running.
        self.apart: dict[JobState, set[JobKey]] = {
            state: set() for state in JobState if state in ACTIVE - {JobState.QUEUED, JobState.RUNNING}
        }
        # Arrays all of whose tasks have started.
        self.started: set[JobKey] = set()

    def recount(self, jobs: Iterable[Job]) -> None:
        """Rebuild the sets from all active jobs."""
        for keys in self.apart.values():
            keys.clear()
        self.started.clear()
        for job in jobs:
            self._classify(job)

    def update(self, changes: Changes) -> None:
        """Count the changes of one turn."""
        for job in changes.jobs.values():
            self._classify(job)
        for entry in changes.audit:
            if entry.key is not None:
                self._count(entry, changes.jobs.get(JobKey(entry.key)))

    def _classify(self, job: Job) -> None:
        for state, keys in self.apart.items():
            (keys.add if job.state is state else keys.discard)(job.key)
        is_started = job.is_array and job.state is JobState.RUNNING
        (self.started.add if is_started else self.started.discard)(job.key)

    def _count(self, entry: AuditEntry, job: Job | None) -> None:
        if job is None:
            return
        if entry.what in COUNTED:
            self.users[entry.what, self._name(job.user)] += 1
        if entry.what == "started" and job.attempt == 1 and job.started_at is not None:
            self.waited.observe(max(0.0, job.started_at - job.submitted_at))
        elif job.is_final and job.ran_s is not None:
            self.ran.observe(job.ran_s)

    def _name(self, user: str) -> str:
        if user not in self._names and len(self._names) >= MAX_USERS:
            return OTHER
        self._names.add(user)
        return user
