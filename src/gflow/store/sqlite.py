"""The store on SQLite: WAL, synchronous=FULL, one writing connection.

The daemon commits in its own thread: events that are ready in the same turn share a commit, and passing
them to a second thread would cost more than it saves.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from gflow.core.ids import TASK_BITS, JobKey, job_key, number_of, task_of
from gflow.core.model import ACTIVE, AuditEntry, Job, JobState
from gflow.core.queries.audit_log import GROUPED, of_job
from gflow.core.reasons import Reason, ReasonKind
from gflow.core.state.job_tables import RECENT
from gflow.core.transitions import ENDED
from gflow.errors import StoreError
from gflow.fault_points import point
from gflow.store.bulk import Bulk, OpenSubmission, bulk_of, encode
from gflow.store.open import UNREADABLE, WAY_OUT, open_database, unreadable
from gflow.store.port import LEARNT_FROM, Changes, Loaded, address_of, keep_unfinished, neighbours
from gflow.store.reader import Reader
from gflow.store.rows import (
    CUT_OFF,
    INSERT,
    SELECT,
    UPSERT,
    attempt_row,
    damaged,
    is_text,
    is_untouched,
    job_of,
    to_new_row,
    to_row,
)

# Jobs that are no tasks of arrays.
WHOLE = f"key & {(1 << TASK_BITS) - 1} = 0"

# Greater than every character of a name in the table meta.
LAST_CHARACTER = "\U0010ffff"


class SqliteStore:
    """The database file of one daemon."""

    def __init__(
        self,
        path: Path,
        kind: str | None = None,
        verify: Callable[[SqliteStore], object] = lambda store: None,
    ) -> None:
        """`kind`: the daemon that opens it (see `ownership`). `verify` reads all that a daemon loads."""
        self.path = path
        self._db = open_database(path, kind, partial(self._verify, verify))
        self._bulk = self._read_bulk()
        # The first and last keys of submissions that are not closed: their jobs are hidden.
        self._hidden = _hidden(self._bulk)
        # The files that commits write to, with device and inode; the log, once the first commit created it.
        self._file = os.path.realpath(path)
        self._log = f"{self._file}-wal"
        self._file_id = _identity(self._file)
        self._log_id = _identity(self._log)

    def _verify(self, verify: Callable[[SqliteStore], object], db: sqlite3.Connection) -> None:
        self._db = db
        self._bulk = self._read_bulk()
        self._hidden = _hidden(self._bulk)
        self.load()
        verify(self)

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------ write

    def commit(self, changes: Changes) -> None:
        """Write all of `changes` or nothing; durable on return. Raises StoreError if it cannot."""
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                self._write(changes)
                point("commit.inside")
                self.check_in_place()
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(f"the database cannot be written: {error}") from error
        if changes.bulk or changes.progress:
            keep_unfinished(self._bulk, changes)
            self._hidden = _hidden(self._bulk)

    def check_in_place(self) -> None:
        """Raise StoreError if the files that we write are not the files that the next daemon would open.

        Costs two calls of stat, microseconds; a commit takes milliseconds.
        """
        if _identity(self._file) != self._file_id:
            raise _gone(self._file)
        now = _identity(self._log)
        if now != self._log_id:
            if self._log_id is not None:
                raise _gone(self._log)
            self._log_id = now

    def _write(self, changes: Changes) -> None:
        db = self._db
        if changes.blobs:
            db.executemany("INSERT OR IGNORE INTO blobs (hash, bytes) VALUES (?, ?)", changes.blobs.items())
        fresh = [job for key, job in changes.jobs.items() if key in changes.new and is_untouched(job)]
        if fresh:
            db.executemany(INSERT, map(to_new_row, fresh))
        if len(fresh) < len(changes.jobs):
            done = {job.key for job in fresh}
            self._write_jobs([job for key, job in changes.jobs.items() if key not in done])
        if changes.staged or changes.discarded or changes.bulk or changes.progress:
            self._write_parts(changes)
        if changes.attempts:
            db.executemany(
                "INSERT INTO attempts (key, attempt, started_at, finished_at, gpu_ids, ran_s) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                map(attempt_row, changes.attempts),
            )
        if changes.submissions:
            db.executemany(
                "INSERT INTO submissions (uid, token, first, count, at) VALUES (?, ?, ?, ?, ?)",
                [(s.uid, s.token, s.keys[0], len(s.keys), s.at) for s in changes.submissions],
            )
        if changes.dropped:
            ranges = [(prefix, prefix + LAST_CHARACTER) for prefix in changes.dropped]
            db.executemany("DELETE FROM meta WHERE name BETWEEN ? AND ?", ranges)
        if changes.meta:
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", changes.meta.items())
        if changes.audit:
            db.executemany(
                "INSERT INTO audit (at, key, uid, origin, what, detail) VALUES (?, ?, ?, ?, ?, ?)",
                changes.audit,
            )

    def _write_parts(self, changes: Changes) -> None:
        db = self._db
        db.executemany(INSERT, map(to_new_row, changes.staged))
        db.executemany("DELETE FROM jobs WHERE key BETWEEN ? AND ?", changes.discarded)
        for number, bulk in changes.bulk.items():
            if bulk is None:
                db.execute("DELETE FROM bulk WHERE id = ?", (number,))
            else:
                row = number, encode(bulk).decode()
                db.execute("INSERT OR REPLACE INTO bulk (id, data) VALUES (?, ?)", row)
        done = [(count, number) for number, count in changes.progress.items()]
        db.executemany("UPDATE bulk SET done = ? WHERE id = ?", done)

    def _write_jobs(self, jobs: list[Job]) -> None:
        db = self._db
        db.executemany(UPSERT, map(to_row, jobs))
        # Free GPUs before allocating any: one commit may contain an end and the next start.
        db.executemany("DELETE FROM holds WHERE key = ?", [(job.key,) for job in jobs if job.attempt])
        holds = [
            (gpu, job.key, job.spec.gpu_memory_mib if job.spec.shared else 0)
            for job in jobs
            if job.state is JobState.RUNNING
            for gpu in job.gpu_ids
        ]
        if holds:
            db.executemany("INSERT INTO holds (gpu, key, memory_mib) VALUES (?, ?, ?)", holds)

    # ------------------------------------------------------------ read

    def load(self) -> Loaded:
        jobs = list(self.jobs(active=True))
        meta = dict(self._rows("SELECT name, value FROM meta"))
        return Loaded(
            jobs=jobs,
            outcomes=self.outcomes({key for job in jobs for key in job.spec.parents}),
            recent=self._recent(),
            next_number=_next_number(meta),
            meta=meta,
            finished=self._finished(),
            bulk=dict(self._bulk),
        )

    def unfinished(self) -> dict[int, Bulk]:
        """Unfinished bulk work."""
        return dict(self._bulk)

    def unaudited(self, bulk: OpenSubmission) -> list[tuple[JobKey, float]]:
        """The jobs of a submission that have no audit entry yet, each with its submission time."""
        told = "SELECT 1 FROM audit WHERE audit.key = jobs.key AND what = 'submitted'"
        mine = f"SELECT key, submitted_at FROM jobs WHERE key BETWEEN ? AND ? AND {WHOLE}"
        rows = self._rows(f"{mine} AND NOT EXISTS ({told}) ORDER BY key", bulk.span)
        return [(JobKey(key), at) for key, at in rows]

    def _read_bulk(self) -> dict[int, Bulk]:
        return {row[0]: bulk_of(*row) for row in self._rows("SELECT id, data, done FROM bulk")}

    def _is_hidden(self, key: int) -> bool:
        return any(first <= key <= last for first, last in self._hidden)

    def _finished(self) -> tuple[Job, ...]:
        """The latest jobs that finished, by key."""
        which = "finished_at IS NOT NULL AND state = 'Finished' AND progress IS NULL"
        latest = f"{SELECT} WHERE {which} ORDER BY finished_at DESC LIMIT ?"
        return tuple(self._jobs(f"SELECT * FROM ({latest}) ORDER BY key", [LEARNT_FROM]))

    def _recent(self) -> list[tuple[int, JobKey]]:
        """The last RECENT jobs of each user, oldest first. One index seek per user."""
        found: list[tuple[JobKey, int]] = []
        uid: int | None = self._row("SELECT min(uid) FROM jobs")[0]
        # Tasks of arrays have their own rows; `@` means whole jobs.
        seen = "".join(f" AND key NOT BETWEEN {int(first)} AND {int(last)}" for first, last in self._hidden)
        sql = f"SELECT key FROM jobs WHERE uid = ? AND {WHOLE}{seen} ORDER BY key DESC LIMIT ?"
        while uid is not None:
            found += [(JobKey(key), uid) for (key,) in self._rows(sql, (uid, RECENT))]
            uid = self._row("SELECT min(uid) FROM jobs WHERE uid > ?", (uid,))[0]
        return [(owner, key) for key, owner in sorted(found)]

    def job(self, key: JobKey) -> Job | None:
        if self._hidden and self._is_hidden(key):
            return None
        row = self._row(SELECT + " WHERE key = ?", (key,))
        return job_of(row, {}) if row else None

    def jobs(self, *, active: bool) -> Iterable[Job]:
        """Active jobs, or all jobs, ordered by key. For a part of them, use a `reader`."""
        jobs = self._jobs(SELECT + (" WHERE finished_at IS NULL" if active else "") + " ORDER BY key", [])
        return [job for job in jobs if not self._is_hidden(job.key)] if self._hidden else jobs

    def tasks(self, array: JobKey) -> Iterable[Job]:
        """The tasks of an array that have started or ended, by task."""
        return self._jobs(
            SELECT + " WHERE key > ? AND key < ? ORDER BY key", [array, array + (1 << TASK_BITS)]
        )

    def between(
        self, first: int, last: int, owner: tuple[int, str | None] | None = None, *, group: int | None = None
    ) -> list[JobKey]:
        """Keys of the existing jobs from number `first` to `last`, without tasks.

        `owner`: only jobs of this uid and name (None: any name). `group`: only jobs of this group.
        """
        uid, user = owner or (None, None)
        mine = "ifnull(?, uid) = uid AND ifnull(?, user) = user"
        of_group = "" if group is None else f"AND json_extract(spec, '$.group') = {int(group)} "
        sql = f"SELECT key FROM jobs WHERE key BETWEEN ? AND ? AND {WHOLE} AND {mine} {of_group}ORDER BY key"
        rows = self._rows(sql, (job_key(first), job_key(last), uid, user))
        return [JobKey(key) for (key,) in rows if not self._hidden or not self._is_hidden(key)]

    def cancelled_with(self, key: JobKey) -> list[Job]:
        """Jobs that were cancelled because this job, or a task of it, did not succeed."""
        reason = str(Reason(ReasonKind.DEPENDENCY_FAILED, job=key))
        # The LIKE enables the index. Tasks are the range from `42_` to the text after every `42_…`.
        which = f"{SELECT} WHERE {CUT_OFF} AND reason"
        found = self._jobs(f"{which} = ?", [reason])
        found += self._jobs(f"{which} BETWEEN ? AND ?", [reason + "_", reason + "_~"])
        return sorted(found, key=lambda job: job.key)

    def _jobs(self, sql: str, values: list[Any]) -> list[Job]:
        specs: dict[str, Any] = {}
        try:
            return [job_of(row, specs) for row in self._rows(sql, values)]
        except StoreError:
            self._name_damaged(sql, values)
            raise

    def _name_damaged(self, sql: str, values: list[Any]) -> None:
        """Raise the error for the first of these jobs with text that is not UTF-8, if there is one."""
        self._db.text_factory = bytes
        try:
            for row in self._rows(sql, values):
                if not all(map(is_text, row)):
                    raise damaged(row[0])
        finally:
            self._db.text_factory = str

    def outcomes(self, keys: Iterable[JobKey]) -> dict[JobKey, JobState]:
        """Final states of these jobs; jobs that have not ended or do not exist are left out."""
        found: dict[JobKey, JobState] = {}
        for key in keys:
            job = self.job(key)
            state = job.state if job else self._never_started(key)
            if state is not None and state not in ACTIVE:
                found[key] = state
        return found

    def _never_started(self, key: JobKey) -> JobState | None:
        """The state of a task that never started: it is part of its array's record."""
        task = task_of(key)
        array = self.job(job_key(number_of(key))) if task is not None else None
        if task is None or array is None or array.progress is None or task not in array.progress.pending:
            return None
        # Waiting tasks of an array that is being cancelled have ended; the array ends with its running tasks.
        return array.stopping or array.state

    def reader(self) -> Reader:
        """A snapshot of the committed state, for long reads."""
        return Reader(self.path)

    def ends_on_gpus(
        self, since: float, until: float, limit: int
    ) -> list[tuple[JobKey, int, str, str, float]]:
        """Key, uid, GPUs, state and end of the newest jobs that had GPUs and ended in a span of time.

        Reads at most `limit` jobs, by the index of ends, and not their specs: 1 ms for 500.
        """
        sql = (
            "SELECT key, uid, gpu_ids, state, finished_at FROM"
            " (SELECT key, uid, gpu_ids, state, finished_at FROM jobs"
            " WHERE finished_at BETWEEN ? AND ? ORDER BY finished_at DESC LIMIT ?) WHERE gpu_ids != ''"
        )
        return [(JobKey(row[0]), *row[1:]) for row in self._rows(sql, (since, until, limit))]

    def submission(self, uid: int, token: str) -> tuple[JobKey, ...] | None:
        row = self._row("SELECT first, count FROM submissions WHERE uid = ? AND token = ?", (uid, token))
        return neighbours(JobKey(row[0]), row[1]) if row else None

    def has_blob(self, address: str) -> bool:
        return self._row("SELECT 1 FROM blobs WHERE hash = ?", (address,)) is not None

    def earlier_attempts(self, key: JobKey) -> int:
        """How many attempts of a job began and ended before the one in its record."""
        row = self._row("SELECT count(*) FROM attempts WHERE key = ?", (key,))
        return int(row[0]) if row is not None else 0

    def blob(self, address: str) -> bytes:
        row = self._row("SELECT bytes FROM blobs WHERE hash = ?", (address,))
        if row is None:
            raise StoreError(f"the stored text {address} is gone")
        content = row[0]
        # A job must never run another script than the one submitted.
        if not isinstance(content, bytes) or address_of(content) != address:
            raise StoreError(f"the stored text {address} is damaged")
        return content

    def audit_of(self, key: JobKey) -> list[AuditEntry]:
        """The audit log of a job, in order."""
        select = "SELECT id, at, key, uid, origin, what, detail FROM audit"
        own = [
            (row[0], AuditEntry(*row[1:]))
            for row in self._rows(f"{select} WHERE key = ? ORDER BY id", (key,))
        ]
        # Grouped entries have no key: any of them during the job's life may include the job.
        after = own[0][0] if own and own[0][1].what == "submitted" else 0
        before = next((number for number, line in own if line.what in ENDED.values()), sys.maxsize)
        several = f"{select} WHERE key IS NULL AND id BETWEEN ? AND ? AND what IN {GROUPED}"
        for row in self._rows(several, (after, before)):
            if line := of_job(AuditEntry(*row[1:]), key):
                own.append((row[0], line))
        return [line for _, line in sorted(own, key=itemgetter(0))]

    def meta_value(self, name: str) -> str | int | None:
        """The stored value of this name (table meta)."""
        row = self._row("SELECT value FROM meta WHERE name = ?", (name,))
        return row[0] if row else None

    def latest_boot(self) -> float:
        """The latest boot-clock time at which an active job started or became ready; 0: none."""
        sql = "SELECT max(max(coalesce(started_boot, 0), ready_at)) FROM jobs WHERE finished_at IS NULL"
        return float(self._row(sql)[0] or 0.0)

    def latest_audit_id(self) -> int:
        """The number of the last entry of the audit log."""
        return int(self._row("SELECT coalesce(max(id), 0) FROM audit")[0])

    def audit_after(self, after: int, limit: int) -> list[tuple[int, AuditEntry]]:
        """Entries of the audit log after this number, in order, each with its number."""
        rows = self._rows(
            "SELECT id, at, key, uid, origin, what, detail FROM audit WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [(row[0], AuditEntry(*row[1:])) for row in rows]

    def _row(self, sql: str, values: Sequence[Any] = ()) -> Any:
        try:
            return self._db.execute(sql, values).fetchone()
        except UNREADABLE as error:
            raise unreadable(error) from error

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        try:
            yield from self._db.execute(sql, values)
        except UNREADABLE as error:
            raise unreadable(error) from error


def _next_number(meta: dict[str, str | int]) -> int:
    try:
        return int(meta.get("next_number", 1))
    except (ValueError, TypeError) as error:
        raise StoreError("the record 'next_number' in the database is damaged", hint=WAY_OUT) from error


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file with this name; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _gone(path: str) -> StoreError:
    return StoreError(
        f"{path} was removed or replaced while gflowd runs, so further changes would be lost",
        hint="move the same file back, or: gflowd down; gflowd restore BACKUP; gflowd up",
    )


def _hidden(bulk: dict[int, Bulk]) -> list[tuple[JobKey, JobKey]]:
    return [one.span for one in bulk.values() if isinstance(one, OpenSubmission) and not one.closed]
