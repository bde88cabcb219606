"""Backups, restores, and what is thrown away in time. Runs beside the daemon's own connection."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path

import msgspec

from gflow.core.ids import TASK_BITS
from gflow.errors import StoreError
from gflow.store.opening import check_header, check_structure

DAY_S = 86400.0
BACKUPS_KEPT = 7
CHUNK = 2000


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """For how many days what is kept."""

    jobs_days: int = 365
    audit_days: int = 365
    # Environments and scripts, after the last job that needs them.
    texts_days: int = 30
    tokens_days: int = 7


# ---------------------------------------------------------------- backup and restore


def back_up(database: Path, target: Path) -> Path:
    """A whole, checked copy of a database that may be in use. Appears under its name only when whole."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".new")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with _connection(database) as source, _connection(temporary) as copy:
            source.backup(copy, pages=1000)
            copy.execute("PRAGMA journal_mode = DELETE")
            problems = [row[0] for row in copy.execute("PRAGMA integrity_check(1)")]
        if problems != ["ok"]:
            raise StoreError(f"{database} is damaged: {problems[0]}; no backup was made of it")
        _sync(temporary)
        temporary.rename(target)
    except sqlite3.Error as error:
        raise StoreError(f"{database} could not be backed up: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def back_up_daily(database: Path, folder: Path) -> Path:
    """Today's backup in `folder`; the oldest beyond a week go."""
    made = back_up(database, folder / time.strftime("gflow-%Y%m%d-%H%M%S.db"))
    for old in sorted(folder.glob("gflow-*.db"))[:-BACKUPS_KEPT]:
        old.unlink()
    return made


def is_backup_due(folder: Path, now: float) -> bool:
    newest = max((path.stat().st_mtime for path in folder.glob("gflow-*.db")), default=0.0)
    return now - newest >= DAY_S


def restore(backup: Path, database: Path, first_free_number: int) -> Path | None:
    """Put a backup in the database's place; where the old one went. No daemon may run.

    Numbers given out since the backup are not given out again: their logs and processes exist.
    """
    check_header(backup)
    try:
        with _connection(backup) as db:
            check_structure(db, backup)
    except sqlite3.Error as error:
        raise StoreError(f"{backup} cannot be restored: {error}") from error
    temporary = database.with_name(database.name + ".restored")
    shutil.copyfile(backup, temporary)
    temporary.chmod(0o600)
    with _connection(temporary) as db:
        row = db.execute("SELECT value FROM meta WHERE name = 'next_number'").fetchone()
        number = max(first_free_number, row[0] if row else 1)
        db.execute("INSERT OR REPLACE INTO meta VALUES ('next_number', ?)", (number,))
    _sync(temporary)
    kept = _set_aside(database)
    temporary.rename(database)
    return kept


def _set_aside(database: Path) -> Path | None:
    """Move a database and its log out of the way; never delete it."""
    if not database.exists():
        return None
    kept = database.with_name(time.strftime(f"{database.name}.before-restore-%Y%m%d-%H%M%S"))
    for suffix in ("-wal", "-shm"):
        beside = database.with_name(database.name + suffix)
        if beside.exists():
            beside.rename(kept.with_name(kept.name + suffix))
    return database.rename(kept)


# ---------------------------------------------------------------- retention


def throw_away(database: Path, retention: Retention, now: float) -> int:
    """Delete what is past its days, a little at a time; how many jobs went.

    A job that an active one depends on stays, however old.
    """
    with _connection(database) as db:
        db.execute("PRAGMA foreign_keys = ON")
        gone = _delete_jobs(db, now - retention.jobs_days * DAY_S)
        _delete_in_chunks(db, "audit", "id", "at < ?", (now - retention.audit_days * DAY_S,))
        db.execute("DELETE FROM submissions WHERE at < ?", (now - retention.tokens_days * DAY_S,))
        _delete_texts(db, now - retention.texts_days * DAY_S)
    return gone


def _delete_jobs(db: sqlite3.Connection, before: float) -> int:
    parents = (
        "SELECT value FROM jobs AS waiting, json_each(waiting.spec, ?) WHERE waiting.finished_at IS NULL"
    )
    needed = {key for path in ("$.depends_on", "$.depends_any") for (key,) in db.execute(parents, (path,))}
    needed |= {key >> TASK_BITS << TASK_BITS for key in needed}
    gone = 0
    while True:
        rows = db.execute(
            "SELECT key FROM jobs WHERE finished_at < ? AND key > ? ORDER BY key LIMIT ?",
            (before, gone, CHUNK),
        ).fetchall()
        if not rows:
            return gone
        gone = rows[-1][0]
        db.executemany("DELETE FROM jobs WHERE key = ?", [row for row in rows if row[0] not in needed])


def _delete_texts(db: sqlite3.Connection, before: float) -> None:
    """Delete environments and scripts that no active or recent job needs."""
    db.execute("CREATE TEMP TABLE needed (hash TEXT PRIMARY KEY)")
    newest = db.execute("SELECT coalesce(max(key), 0) FROM jobs").fetchone()[0]
    _note_texts(db, "finished_at IS NULL OR finished_at >= ?", before)
    # The long look is done without a lock; jobs that came meanwhile are few.
    db.execute("BEGIN IMMEDIATE")
    _note_texts(db, "key > ?", newest)
    db.execute("DELETE FROM blobs WHERE hash NOT IN (SELECT hash FROM needed)")
    db.execute("COMMIT")


def _note_texts(db: sqlite3.Connection, where: str, value: float) -> None:
    for path in ("$.environ", "$.script"):
        db.execute(
            "INSERT OR IGNORE INTO needed SELECT json_extract(spec, ?) FROM jobs "
            f"WHERE ({where}) AND json_extract(spec, ?) IS NOT NULL",
            (path, value, path),
        )


def _delete_in_chunks(db: sqlite3.Connection, table: str, key: str, where: str, values: tuple[float]) -> None:
    """Short transactions: the daemon commits in between."""
    while True:
        sql = f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} WHERE {where} LIMIT {CHUNK})"
        if db.execute(sql, values).rowcount < CHUNK:
            return


class _connection:
    """A connection of our own that is closed afterwards, unlike sqlite3's."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)

    def __enter__(self) -> sqlite3.Connection:
        return self._db

    def __exit__(self, *_: object) -> None:
        self._db.close()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
