"""The port of the store: its interface, and the contents of one commit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol, cast

import msgspec

from gflow.core.effects import Ran
from gflow.core.ids import JobKey
from gflow.core.model import AuditEntry, Job, JobState
from gflow.store.bulk import STEP, Bulk, OpenSubmission, advanced

# Number of finished jobs that a daemon loads at its start, for runtime estimates.
LEARNT_FROM = 5000
# Name of the record with the launch epoch (targets.local.launch_epoch) of the running runs.
LAUNCH_EPOCH = "launch_epoch"


class Submission(NamedTuple):
    """One accepted submission: the token of its client, and its jobs."""

    uid: int
    token: str
    keys: tuple[JobKey, ...]
    at: float


class Changes(msgspec.Struct):
    """The contents of one commit: everything that one turn of the loop makes durable."""

    jobs: dict[JobKey, Job] = msgspec.field(default_factory=dict)
    # Keys of new jobs among `jobs`.
    new: set[JobKey] = msgspec.field(default_factory=set)
    submissions: list[Submission] = msgspec.field(default_factory=list)
    blobs: dict[str, bytes] = msgspec.field(default_factory=dict)
    meta: dict[str, str | int] = msgspec.field(default_factory=dict)
    # Prefixes of names in the table meta that are deleted before `meta` is written.
    dropped: list[str] = msgspec.field(default_factory=list)
    audit: list[AuditEntry] = msgspec.field(default_factory=list)
    # Earlier attempts, which the job records no longer contain.
    attempts: list[Ran] = msgspec.field(default_factory=list)
    # Jobs of a staged submission; key ranges (first, last) of such jobs to delete.
    staged: list[Job] = msgspec.field(default_factory=list)
    discarded: list[tuple[JobKey, JobKey]] = msgspec.field(default_factory=list)
    # Bulk work by number; None: it is finished.
    bulk: dict[int, Bulk | None] = msgspec.field(default_factory=dict)
    # How many jobs of an intent have been changed.
    progress: dict[int, int] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.jobs
            or self.submissions
            or self.blobs
            or self.meta
            or self.dropped
            or self.audit
            or self.staged
            or self.discarded
            or self.bulk
            or self.progress
        )


class Loaded(NamedTuple):
    """The state that a daemon loads at its start."""

    jobs: list[Job]
    outcomes: dict[JobKey, JobState]
    recent: list[tuple[int, JobKey]]
    next_number: int
    meta: dict[str, str | int]
    # The latest finished jobs, for runtime estimates.
    finished: tuple[Job, ...] = ()
    bulk: dict[int, Bulk] = {}


class Store(Protocol):
    """Durable state. `commit` returns only when the disk has it; reads see commits only."""

    def load(self) -> Loaded: ...
    def commit(self, changes: Changes) -> None: ...
    def check_in_place(self) -> None: ...
    def job(self, key: JobKey) -> Job | None: ...
    def jobs(self, *, active: bool) -> Iterable[Job]: ...
    def tasks(self, array: JobKey) -> Iterable[Job]: ...
    def between(
        self, first: int, last: int, owner: tuple[int, str | None] | None = None, *, group: int | None = None
    ) -> list[JobKey]: ...
    def cancelled_with(self, key: JobKey) -> list[Job]: ...
    def outcomes(self, keys: Iterable[JobKey]) -> dict[JobKey, JobState]: ...
    def submission(self, uid: int, token: str) -> tuple[JobKey, ...] | None: ...
    def unfinished(self) -> dict[int, Bulk]: ...
    def unaudited(self, bulk: OpenSubmission) -> list[tuple[JobKey, float]]: ...
    def blob(self, address: str) -> bytes: ...
    def earlier_attempts(self, key: JobKey) -> int: ...
    def audit_of(self, key: JobKey) -> list[AuditEntry]: ...
    def meta_value(self, name: str) -> str | int | None: ...
    def latest_audit_id(self) -> int: ...
    def audit_after(self, after: int, limit: int) -> list[tuple[int, AuditEntry]]: ...
    def close(self) -> None: ...


def keep_unfinished(unfinished: dict[int, Bulk], changes: Changes) -> None:
    """Update `unfinished` by these changes."""
    for number, bulk in changes.bulk.items():
        unfinished.pop(number, None)
        if bulk is not None:
            unfinished[number] = bulk
    for number, done in changes.progress.items():
        if number in unfinished:
            unfinished[number] = advanced(unfinished[number], done)


def neighbours(first: JobKey, count: int) -> tuple[JobKey, ...]:
    """The keys of jobs that were submitted together: they have consecutive numbers."""
    return cast("tuple[JobKey, ...]", tuple(range(first, first + count * STEP, STEP)))


def address_of(content: bytes) -> str:
    """The content address of a blob."""
    return hashlib.blake2b(content, digest_size=20).hexdigest()
