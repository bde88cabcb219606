"""Opening the database: only what is ours, whole, and of a version we know. Nothing else is touched."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from gflow.errors import StoreError
from gflow.store.schema import APPLICATION_ID, VERSION, script_from

MAGIC = b"SQLite format 3\0"
HEADER = 100
WAY_OUT = "gflowd restore BACKUP puts a backup in its place; backups are in the folder backups beside it"


def open_database(path: Path) -> sqlite3.Connection:
    """The open database, brought to the current schema; a new one if there is none."""
    try:
        fresh = _create_private(path)
        if not fresh:
            check_header(path)
    except OSError as error:
        raise StoreError(f"the database {path} cannot be used: {error.strerror}") from error
    db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    try:
        prepare(db, path, fresh=fresh)
    except sqlite3.Error as error:
        db.close()
        raise StoreError(f"the database {path} cannot be used: {error}", hint=WAY_OUT) from error
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection, path: Path, *, fresh: bool) -> None:
    """Check, migrate, and set the modes that make a commit durable."""
    if not fresh:
        check_structure(db, path)
    version = 0 if fresh else db.execute("PRAGMA user_version").fetchone()[0]
    if version < VERSION:
        db.executescript(script_from(version))
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")


def check_header(path: Path) -> None:
    """Refuse what is not ours by its first bytes: SQLite changes files beside it on mere opening."""
    with path.open("rb") as file:
        head = file.read(HEADER)
    if not head.startswith(MAGIC) or len(head) < HEADER:
        raise StoreError(f"{path} is damaged or no database: it does not start like one", hint=WAY_OUT)
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise StoreError(f"{path} is not a gflow database, so it is left alone", hint=WAY_OUT)
    version = int.from_bytes(head[60:64], "big")
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer gflow (schema {version}, this one knows {VERSION})",
            hint="install that gflow again, or move the file away to start empty",
        )
    size = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    have = path.stat().st_size
    if not path.with_name(path.name + "-wal").exists() and pages * (65536 if size == 1 else size) > have:
        raise StoreError(f"{path} is damaged: it should be longer than its {have} bytes", hint=WAY_OUT)


def check_structure(db: sqlite3.Connection, path: Path) -> None:
    """Read everything a daemon starts from, so that damage shows now and not in the middle of a job."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    missing = {"meta", "jobs", "holds", "submissions", "blobs"} - tables
    if missing:
        raise StoreError(f"{path} is damaged: it has no table {min(missing)}", hint=WAY_OUT)
    problems = [row[0] for row in db.execute("PRAGMA quick_check(1)")] if _is_small(path) else ["ok"]
    if problems != ["ok"]:
        raise StoreError(f"{path} is damaged: {problems[0]}", hint=WAY_OUT)


def _is_small(path: Path) -> bool:
    """A whole check costs a second per 200 MB; larger files are checked when they are backed up."""
    return path.stat().st_size < 50_000_000


def _create_private(path: Path) -> bool:
    """Make the file ourselves, 0600, before SQLite would make it by the umask. True if it is new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # An empty file without a log is one we made and died before we filled it.
        return path.stat().st_size == 0 and not path.with_name(path.name + "-wal").exists()
    return True
