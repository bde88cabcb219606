"""Backup, restore and retention. Uses connections of its own beside the daemon's."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from gflow.core.ids import TASK_BITS, label
from gflow.core.model import PARENT_FIELDS
from gflow.core.policy import DRAINED, Drained
from gflow.errors import StoreError
from gflow.store import files, ownership
from gflow.store.files import beside
from gflow.store.open import check_database
from gflow.store.port import LAUNCH_EPOCH
from gflow.store.rows import CUT_OFF, USUAL_BYTES, waiting_tasks
from gflow.store.snapshot import RESTORED, back_up, copy, swap_in

DAY_S = 86400.0
BACKUPS_KEPT = 7
CHUNK = 2000
# Paths in a spec that refer to stored texts: the environment and the script.
TEXTS = ("$.environ", "$.script")
# Parents in specs.
PARENT_PATHS = [f"$.{field}" for field in (*PARENT_FIELDS, "depends_earlier")]
# Seconds for which a job that never ran keeps its texts after it was cancelled: `gjob redo` needs them.
UNRUN_S = 3600.0
_UNRUN = f"state = 'Cancelled' AND attempt = 0 AND NOT {CUT_OFF} AND finished_at < ?"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Retention periods, in days."""

    jobs_days: int = 365
    audit_days: int = 365
    # Environments and scripts, after the last job that needs them.
    texts_days: int = 30
    tokens_days: int = 7
    logs_days: int = 365


# ---------------------------------------------------------------- backup and restore


def back_up_daily(database: Path, folder: Path) -> Path:
    """Make today's backup in `folder` and delete the oldest beyond BACKUPS_KEPT."""
    made = back_up(database, folder / time.strftime("gflow-%Y%m%d-%H%M%S.db"))
    for old in sorted(folder.glob("gflow-*.db"))[:-BACKUPS_KEPT]:
        old.unlink()
    return made


def is_backup_due(folder: Path, now: float) -> bool:
    newest = max((path.stat().st_mtime for path in folder.glob("gflow-*.db")), default=0.0)
    return now - newest >= DAY_S


def restore(
    backup: Path, database: Path, first_free_number: int, kind: str | None = None, drained: str = ""
) -> Path | None:
    """Replace the database by a backup; returns the new path of the old one. No daemon may run.

    Job numbers assigned since the backup are not reused: their logs and processes exist.
    `kind`: the kind of daemon it is for; backups of another kind are refused. `drained`: the reason of a
    drain that lasts until `gctl resume`; empty: no drain.
    """
    backup, database = files.real(backup), files.real(database)
    new = beside(database, RESTORED + ".new")
    try:
        check_database(backup, kind)
        swap_in(database)  # an interrupted restore has job numbers, too
        files.make_folders(database.parent)
        copy(backup, new)
        with closing(files.connect(new)) as db, _transaction(db):
            number = max(first_free_number, _next_number(db), _next_number_of(database))
            put = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
            db.execute(put, ("next_number", number))
            # Runs that are active in the backup may have ended since, and their run records were deleted.
            db.execute("DELETE FROM meta WHERE name = ?", (LAUNCH_EPOCH,))
            if kind is not None:
                ownership.mark(db, kind)
            if drained:
                db.execute(put, (DRAINED, msgspec.json.encode(Drained(everything=drained)).decode()))
        files.put_in_place(new, beside(database, RESTORED))
        return swap_in(database)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{backup} cannot be restored: {error}") from error
    finally:
        files.remove(new)


def runs_in(backup: Path) -> set[str]:
    """The active runs according to this database: `42.1`, `42_3.1`."""
    check_database(backup)
    try:
        with closing(files.connect_unseen(files.real(backup))) as db:
            rows = db.execute("SELECT key, attempt FROM jobs WHERE state = 'Running'")
            return {f"{label(key)}.{attempt}" for key, attempt in rows}
    except sqlite3.Error as error:
        raise StoreError(f"{backup} cannot be read: {error}") from error


def _next_number(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM meta WHERE name = 'next_number'").fetchone()
    return int(row[0]) if row else 1


def _next_number_of(database: Path) -> int:
    """The next number of a database that may be damaged or missing; 1 then."""
    if not database.is_file() or not database.stat().st_size:  # SQLite deletes the log of an empty database
        return 1
    try:
        with closing(files.connect_unseen(database)) as db:
            return _next_number(db)
    except (sqlite3.Error, ValueError):
        return 1


# ---------------------------------------------------------------- retention


def apply_retention(database: Path, retention: Retention, now: float) -> int:
    """Delete records past their retention period, in short transactions; returns the number of jobs deleted.

    A job that an active job depends on is kept, however old.
    """
    with closing(files.connect(files.real(database))) as db:
        db.execute("PRAGMA foreign_keys = ON")
        gone = _delete_jobs(db, now - retention.jobs_days * DAY_S)
        _delete_in_chunks(db, "audit", "id", now - retention.audit_days * DAY_S)
        _delete_in_chunks(db, "submissions", "uid, token", now - retention.tokens_days * DAY_S)
        _delete_texts(db, now - retention.texts_days * DAY_S)
    return gone


def _delete_jobs(db: sqlite3.Connection, before: float) -> int:
    gone = last = 0
    while True:
        rows = db.execute(
            "SELECT key FROM jobs WHERE finished_at < ? AND key > ? ORDER BY key LIMIT ?",
            (before, last, CHUNK),
        ).fetchall()
        if not rows:
            return gone
        last = rows[-1][0]
        with _transaction(db):  # one transaction, so that no job becomes needed in between
            needed = _needed_jobs(db)
            unneeded = [row for row in rows if row[0] not in needed]
            db.executemany("DELETE FROM jobs WHERE key = ?", unneeded)
        gone += len(unneeded)


def _needed_jobs(db: sqlite3.Connection) -> set[int]:
    """Parents of active jobs; for a task, its array too."""
    parents = (
        "SELECT value FROM jobs AS waiting, json_each(waiting.spec, ?) "
        "WHERE waiting.finished_at IS NULL AND instr(waiting.spec, '\"depends_')"
    )
    needed = {key for path in PARENT_PATHS for (key,) in db.execute(parents, (path,))}
    return needed | {key >> TASK_BITS << TASK_BITS for key in needed}


def delete_unrun_texts(database: Path, retention: Retention, now: float, since: float = 0.0) -> None:
    """Delete environments and scripts of jobs that were cancelled `UNRUN_S` ago or more and never ran.

    Jobs that were cancelled with a parent are left out: `gjob redo --cascade` needs their texts.
    `since`: the time of the last call; if no such job was cancelled since then, there is nothing to do.
    """
    unrun = now - UNRUN_S
    some = f"SELECT 1 FROM jobs WHERE {_UNRUN} AND finished_at >= ? LIMIT 1"
    with closing(files.connect(files.real(database))) as db:
        if db.execute(some, (unrun, since - UNRUN_S)).fetchone():
            _delete_texts(db, now - retention.texts_days * DAY_S, unrun)


def kept_bytes(database: Path, retention: Retention, now: float) -> dict[int, int]:
    """Bytes on disk that the jobs of each user take, by uid.

    The environments and scripts of the jobs, each text counted once, and the part of each spec that exceeds
    the usual size.
    """
    texts = " UNION ".join(
        f"SELECT uid, json_extract(spec, '{path}') AS hash FROM jobs "
        "WHERE finished_at IS NULL OR finished_at >= ?1"
        for path in TEXTS
    )
    sql = f"SELECT uid, sum(length(bytes)) FROM ({texts}) JOIN blobs USING (hash) GROUP BY uid"
    with closing(files.connect(files.real(database), "mode=ro")) as db:
        kept = Counter(dict(db.execute(sql, (now - retention.texts_days * DAY_S,))))
        kept.update(_spec_bytes(db))
    return dict(kept)


def _spec_bytes(db: sqlite3.Connection) -> Counter[int]:
    """Bytes of specs beyond the usual size, by uid, including specs of future tasks of active arrays."""
    more = f"length(CAST(spec AS BLOB)) - {USUAL_BYTES}"
    each = f"SELECT uid, sum({more}) FROM jobs WHERE {more} > 0 GROUP BY uid"
    arrays = f"SELECT uid, {more}, progress FROM jobs WHERE finished_at IS NULL AND progress NOTNULL"
    found = Counter(dict(db.execute(each)))
    for uid, size, progress in db.execute(f"{arrays} AND {more} > 0"):
        found[uid] += size * waiting_tasks(progress)
    return found


def _delete_texts(db: sqlite3.Connection, before: float, unrun_before: float = 0.0) -> None:
    """Delete environments and scripts that no active or recent job needs.

    `unrun_before`: a job that was cancelled before this time and never ran needs no texts.
    """
    db.execute("CREATE TEMP TABLE needed (hash TEXT PRIMARY KEY)")
    newest = db.execute("SELECT coalesce(max(key), 0) FROM jobs").fetchone()[0]
    # Texts that `gjob update` adds meanwhile have higher row ids.
    last = db.execute("SELECT coalesce(max(rowid), 0) FROM blobs").fetchone()[0]
    _note_texts(db, f"finished_at IS NULL OR (finished_at >= ? AND NOT ({_UNRUN}))", before, unrun_before)
    unneeded = (
        f"SELECT hash FROM blobs WHERE rowid <= {last} AND hash NOT IN (SELECT hash FROM needed) LIMIT ?"
    )
    while rows := db.execute(unneeded, (CHUNK,)).fetchall():
        with _transaction(db):
            # The long scans were done without a lock; few jobs were added meanwhile.
            _note_texts(db, "key > ?", newest)
            db.executemany("DELETE FROM blobs WHERE hash = ? AND hash NOT IN (SELECT hash FROM needed)", rows)


def _note_texts(db: sqlite3.Connection, where: str, *values: float) -> None:
    for path in TEXTS:
        db.execute(
            "INSERT OR IGNORE INTO needed SELECT json_extract(spec, ?) FROM jobs "
            f"WHERE ({where}) AND json_extract(spec, ?) IS NOT NULL",
            (path, *values, path),
        )


def _delete_in_chunks(db: sqlite3.Connection, table: str, key: str, before: float) -> None:
    """Delete in short transactions, so that the daemon can commit in between.

    The search reads the whole table, and so takes no lock that a commit would wait for.
    """
    one = " AND ".join(f"{column} = ?" for column in key.split(", "))
    while rows := db.execute(f"SELECT {key} FROM {table} WHERE at < ? LIMIT ?", (before, CHUNK)).fetchall():
        with _transaction(db):
            db.executemany(f"DELETE FROM {table} WHERE {one}", rows)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def delete_old_logs(folder: Path, before: float) -> int:
    """Delete job logs that have not been written to since `before`; returns how many."""
    gone = 0
    for path in folder.glob("[0-9]*.log*"):
        if path.lstat().st_mtime < before:
            path.unlink(missing_ok=True)
            gone += 1
    return gone
