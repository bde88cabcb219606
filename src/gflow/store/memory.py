"""The in-memory store: the same interface and guarantees, kept in dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.model import ACTIVE, AuditEntry, Job, JobState
from gflow.core.queries.audit_log import of_job
from gflow.core.reasons import ReasonKind
from gflow.core.state.job_tables import RECENT
from gflow.errors import StoreError
from gflow.store.bulk import Bulk, OpenSubmission
from gflow.store.port import LEARNT_FROM, Changes, Loaded, keep_unfinished


class MemoryStore:
    """For tests and simulations. Keeps copies, as a disk would."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Job] = {}
        self._submissions: dict[tuple[int, str], tuple[JobKey, ...]] = {}
        self._blobs: dict[str, bytes] = {}
        self._attempts: Counter[JobKey] = Counter()
        self._meta: dict[str, str | int] = {}
        self._audit: list[AuditEntry] = []
        self._bulk: dict[int, Bulk] = {}
        self.commits = 0

    def commit(self, changes: Changes) -> None:
        for key in changes.jobs:
            if key in self._jobs and self._jobs[key].is_final:
                raise StoreError("the database cannot be written: a final job cannot change")
        self.commits += 1
        self._blobs.update(changes.blobs)
        self._attempts.update(ran.key for ran in changes.attempts)
        self._jobs.update({key: _copy(job) for key, job in changes.jobs.items()})
        self._jobs.update({job.key: _copy(job) for job in changes.staged})
        for first, last in changes.discarded:
            for key in [key for key in self._jobs if first <= key <= last]:
                del self._jobs[key]
        keep_unfinished(self._bulk, changes)
        self._submissions.update({(s.uid, s.token): s.keys for s in changes.submissions})
        for name in [name for name in self._meta if name.startswith(tuple(changes.dropped))]:
            del self._meta[name]
        self._meta.update(changes.meta)
        self._audit += changes.audit

    def check_in_place(self) -> None:
        """No-op: there is no file that could be removed."""

    def load(self) -> Loaded:
        jobs = list(self.jobs(active=True))
        parents = {key for job in jobs for key in job.spec.parents}
        number = int(self._meta.get("next_number", 1))
        return Loaded(
            jobs,
            self.outcomes(parents),
            self._recent(),
            number,
            dict(self._meta),
            self._finished(),
            dict(self._bulk),
        )

    def unfinished(self) -> dict[int, Bulk]:
        return dict(self._bulk)

    def unaudited(self, bulk: OpenSubmission) -> list[tuple[JobKey, float]]:
        first, last = bulk.span
        told = {line.key for line in self._audit if line.what == "submitted"}
        return [
            (key, job.submitted_at)
            for key, job in sorted(self._jobs.items())
            if first <= key <= last and task_of(key) is None and key not in told
        ]

    def _is_hidden(self, key: JobKey) -> bool:
        opened = (one for one in self._bulk.values() if isinstance(one, OpenSubmission) and not one.closed)
        return any(first <= key <= last for first, last in (one.span for one in opened))

    def job(self, key: JobKey) -> Job | None:
        found = self._jobs.get(key)
        return _copy(found) if found and not self._is_hidden(key) else None

    def jobs(self, *, active: bool) -> Iterable[Job]:
        return [
            _copy(job)
            for key, job in sorted(self._jobs.items())
            if (job.state in ACTIVE or not active) and not self._is_hidden(key)
        ]

    def tasks(self, array: JobKey) -> Iterable[Job]:
        number = number_of(array)
        return [
            _copy(job) for key, job in sorted(self._jobs.items()) if number_of(key) == number and key != array
        ]

    def between(
        self, first: int, last: int, owner: tuple[int, str | None] | None = None, *, group: int | None = None
    ) -> list[JobKey]:
        uid, user = owner or (None, None)
        return [
            key
            for key, job in sorted(self._jobs.items())
            if task_of(key) is None
            and first <= number_of(key) <= last
            and uid in (None, job.uid)
            and user in (None, job.user)
            and group in (None, job.spec.group)
            and not self._is_hidden(key)
        ]

    def cancelled_with(self, key: JobKey) -> list[Job]:
        return [
            _copy(job)
            for _, job in sorted(self._jobs.items())
            if job.reason.kind is ReasonKind.DEPENDENCY_FAILED
            and key in (job.reason.job, job_key(number_of(job.reason.job)))
        ]

    def outcomes(self, keys: Iterable[JobKey]) -> dict[JobKey, JobState]:
        found = {}
        for key in keys:
            job = self._jobs.get(key)
            state = job.state if job else self._never_started(key)
            if state is not None and state not in ACTIVE:
                found[key] = state
        return found

    def _never_started(self, key: JobKey) -> JobState | None:
        task = task_of(key)
        array = self._jobs.get(job_key(number_of(key)))
        if task is None or array is None or array.progress is None or task not in array.progress.pending:
            return None
        return array.stopping or array.state

    def submission(self, uid: int, token: str) -> tuple[JobKey, ...] | None:
        return self._submissions.get((uid, token))

    def blob(self, address: str) -> bytes:
        if address not in self._blobs:
            raise StoreError(f"the stored text {address} is gone")
        return self._blobs[address]

    def earlier_attempts(self, key: JobKey) -> int:
        return self._attempts[key]

    def audit_of(self, key: JobKey) -> list[AuditEntry]:
        told = (line if line.key == key else of_job(line, key) for line in self._audit)
        return [line for line in told if line is not None]

    def meta_value(self, name: str) -> str | int | None:
        return self._meta.get(name)

    def latest_audit_id(self) -> int:
        return len(self._audit)

    def audit_after(self, after: int, limit: int) -> list[tuple[int, AuditEntry]]:
        return list(enumerate(self._audit, 1))[after : after + limit]

    def close(self) -> None:
        pass

    def _finished(self) -> tuple[Job, ...]:
        found = [job for job in self._jobs.values() if job.state is JobState.FINISHED and not job.is_array]
        latest = sorted(found, key=lambda job: job.finished_at or 0.0)[-LEARNT_FROM:]
        return tuple(sorted(map(_copy, latest), key=lambda job: job.key))

    def _recent(self) -> list[tuple[int, JobKey]]:
        """The last RECENT jobs of each user, oldest first."""
        count: Counter[int] = Counter()
        kept = []
        for key, job in sorted(self._jobs.items(), reverse=True):
            if task_of(key) is None and not self._is_hidden(key):
                count[job.uid] += 1
                if count[job.uid] <= RECENT:
                    kept.append((job.uid, key))
        return kept[::-1]


def _copy(job: Job) -> Job:
    return msgspec.structs.replace(job)
