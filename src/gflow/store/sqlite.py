"""The store on SQLite: WAL, synchronous=FULL, one writing connection.

The daemon commits from its own thread: events that are ready in the same turn share a
commit, and a hand-over to a second thread costs more than it hides.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gflow.core.ids import JobKey, number_of
from gflow.core.model import ACTIVE, Job, JobState
from gflow.core.state import RECENT
from gflow.errors import StoreError
from gflow.faults import point
from gflow.store.port import Changes, Loaded, Submission
from gflow.store.rows import SELECT, UPSERT, from_row, to_row
from gflow.store.schema import APPLICATION_ID, SCHEMA, VERSION

ACTIVE_STATES = "state IN ('Queued', 'Hold', 'Running')"


class SqliteStore:
    """The database file of one daemon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _create_private(path)
        except OSError as error:
            raise StoreError(f"the database {path} cannot be used: {error.strerror}") from error
        _check_header(path)
        self._db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        try:
            self._prepare()
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise StoreError(f"the database {path} cannot be used: {error}") from error
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        if db.execute("PRAGMA schema_version").fetchone()[0] == 0:
            db.executescript(
                f"BEGIN;{SCHEMA};PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={VERSION};COMMIT;"
            )
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"{self.path} is not a gflow database, so it is left alone")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise StoreError(
                f"{self.path} was written by a newer gflow (schema {version}, this one knows {VERSION})"
            )
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA foreign_keys=ON")

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------ write

    def commit(self, changes: Changes) -> None:
        """Write all of `changes` or nothing; durable on return."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            self._write(changes)
            point("commit.inside")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _write(self, changes: Changes) -> None:
        db = self._db
        if changes.blobs:
            db.executemany("INSERT OR IGNORE INTO blobs (hash, bytes) VALUES (?, ?)", changes.blobs.items())
        jobs = changes.jobs.values()
        if jobs:
            self._write_jobs(jobs)
        if changes.submissions:
            db.executemany(
                "INSERT INTO submissions (uid, token, first, count, at) VALUES (?, ?, ?, ?, ?)",
                [(s.uid, s.token, s.keys[0], len(s.keys), s.at) for s in changes.submissions],
            )
            db.execute("INSERT OR REPLACE INTO meta VALUES ('next_number', ?)", (changes.next_number,))

    def _write_jobs(self, jobs: Iterable[Job]) -> None:
        db = self._db
        db.executemany(UPSERT, map(to_row, jobs))
        # GPUs are given back before any is taken: one commit holds an end and the next start.
        db.executemany("DELETE FROM holds WHERE key = ?", [(job.key,) for job in jobs if job.gpu_ids])
        holds = [(gpu, job.key) for job in jobs if job.state is JobState.RUNNING for gpu in job.gpu_ids]
        if holds:
            db.executemany("INSERT INTO holds (gpu, key) VALUES (?, ?)", holds)

    # ------------------------------------------------------------ read

    def load(self) -> Loaded:
        jobs = list(self.jobs(active=True))
        parents = {key for job in jobs for key in job.spec.depends_on}
        outcomes = self.outcomes(parents)
        recent = self._recent()
        number = self._db.execute("SELECT value FROM meta WHERE name = 'next_number'").fetchone()
        return Loaded(
            jobs=jobs,
            outcomes=outcomes,
            recent=recent,
            next_number=number[0] if number else 1,
        )

    def _recent(self) -> list[tuple[int, JobKey]]:
        """The last RECENT jobs of each person, oldest first. One index seek per person."""
        found: list[tuple[JobKey, int]] = []
        uid: int | None = self._db.execute("SELECT min(uid) FROM jobs").fetchone()[0]
        while uid is not None:
            sql = "SELECT key FROM jobs WHERE uid = ? ORDER BY key DESC LIMIT ?"
            found += [(JobKey(key), uid) for (key,) in self._db.execute(sql, (uid, RECENT))]
            uid = self._db.execute("SELECT min(uid) FROM jobs WHERE uid > ?", (uid,)).fetchone()[0]
        return [(owner, key) for key, owner in sorted(found)]

    def job(self, key: JobKey) -> Job | None:
        row = self._db.execute(SELECT + " WHERE key = ?", (key,)).fetchone()
        return from_row(row, {}) if row else None

    def jobs(self, *, active: bool, uid: int | None = None, limit: int = 0) -> Iterable[Job]:
        """Jobs by key; with `limit` the newest of them."""
        where = [ACTIVE_STATES] if active else []
        values: list[Any] = []
        if uid is not None:
            where.append("uid = ?")
            values.append(uid)
        sql = SELECT + (" WHERE " + " AND ".join(where) if where else "") + " ORDER BY key"
        if limit:
            sql = f"SELECT * FROM ({sql} DESC LIMIT ?) ORDER BY key"
            values.append(limit)
        specs: dict[str, Any] = {}
        return [from_row(row, specs) for row in self._db.execute(sql, values)]

    def outcomes(self, keys: Iterable[JobKey]) -> dict[JobKey, JobState]:
        """How these jobs ended; jobs that have not ended, or never were, are left out."""
        found: dict[JobKey, JobState] = {}
        for key in keys:
            row = self._db.execute("SELECT state FROM jobs WHERE key = ?", (key,)).fetchone()
            if row and (state := JobState(row[0])) not in ACTIVE:
                found[key] = state
        return found

    def submission(self, uid: int, token: str) -> tuple[JobKey, ...] | None:
        row = self._db.execute(
            "SELECT first, count FROM submissions WHERE uid = ? AND token = ?", (uid, token)
        ).fetchone()
        return _keys_from(JobKey(row[0]), row[1]) if row else None

    def blob(self, address: str) -> bytes:
        row = self._db.execute("SELECT bytes FROM blobs WHERE hash = ?", (address,)).fetchone()
        if row is None:
            raise StoreError(f"the stored text {address} is gone")
        content: bytes = row[0]
        return content


def _keys_from(first: JobKey, count: int) -> tuple[JobKey, ...]:
    """The keys of one submission: jobs submitted together have neighbouring numbers."""
    from gflow.core.ids import job_key

    number = number_of(first)
    return tuple(job_key(number + i) for i in range(count))


def _check_header(path: Path) -> None:
    """Refuse what is not ours by its first bytes: SQLite changes files beside it on mere opening."""
    with path.open("rb") as file:
        head = file.read(100)
    if not head:
        return
    if not head.startswith(b"SQLite format 3\0") or len(head) < 100:
        raise StoreError(f"the database {path} cannot be used: file is not a database")
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise StoreError(f"{path} is not a gflow database, so it is left alone")
    if (version := int.from_bytes(head[60:64], "big")) > VERSION:
        raise StoreError(f"{path} was written by a newer gflow (schema {version}, this one knows {VERSION})")


def _create_private(path: Path) -> None:
    """Make the file ourselves, 0600, before SQLite would make it by the umask."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


__all__ = ["SqliteStore", "Submission"]
