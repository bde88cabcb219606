"""The store's double: the same promises, kept in dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from gflow.core.ids import JobKey
from gflow.core.model import ACTIVE, Job, JobState
from gflow.core.state import RECENT
from gflow.errors import StoreError
from gflow.store.port import Changes, Loaded


class MemoryStore:
    """For tests and simulations. Keeps copies, as a disk would."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Job] = {}
        self._submissions: dict[tuple[int, str], tuple[JobKey, ...]] = {}
        self._blobs: dict[str, bytes] = {}
        self._next_number = 1
        self.commits = 0

    def commit(self, changes: Changes) -> None:
        self.commits += 1
        self._blobs.update(changes.blobs)
        self._jobs.update({key: _copy(job) for key, job in changes.jobs.items()})
        for submission in changes.submissions:
            self._submissions[submission.uid, submission.token] = submission.keys
            self._next_number = changes.next_number

    def load(self) -> Loaded:
        jobs = list(self.jobs(active=True))
        parents = {key for job in jobs for key in job.spec.depends_on}
        recent = [(job.uid, job.key) for job in sorted(self._jobs.values(), key=lambda job: job.key)]
        return Loaded(jobs, self.outcomes(parents), _latest(recent), self._next_number)

    def job(self, key: JobKey) -> Job | None:
        found = self._jobs.get(key)
        return _copy(found) if found else None

    def jobs(self, *, active: bool, uid: int | None = None, limit: int = 0) -> Iterable[Job]:
        found = [
            _copy(job)
            for _, job in sorted(self._jobs.items())
            if (job.state in ACTIVE or not active) and uid in (None, job.uid)
        ]
        return found[-limit:] if limit else found

    def outcomes(self, keys: Iterable[JobKey]) -> dict[JobKey, JobState]:
        jobs = ((key, self._jobs.get(key)) for key in keys)
        return {key: job.state for key, job in jobs if job is not None and job.state not in ACTIVE}

    def submission(self, uid: int, token: str) -> tuple[JobKey, ...] | None:
        return self._submissions.get((uid, token))

    def blob(self, address: str) -> bytes:
        if address not in self._blobs:
            raise StoreError(f"the stored text {address} is gone")
        return self._blobs[address]

    def close(self) -> None:
        pass


def _latest(recent: list[tuple[int, JobKey]]) -> list[tuple[int, JobKey]]:
    """The last RECENT jobs of each person."""
    count: Counter[int] = Counter()
    kept = []
    for uid, key in reversed(recent):
        count[uid] += 1
        if count[uid] <= RECENT:
            kept.append((uid, key))
    return kept[::-1]


def _copy(job: Job) -> Job:
    return msgspec.structs.replace(job)
