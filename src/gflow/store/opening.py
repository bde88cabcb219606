"""Opening the database: only what is ours, whole, and of a version we know. Nothing else is touched."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from gflow.errors import StoreError
from gflow.store import files
from gflow.store.files import beside
from gflow.store.schema import APPLICATION_ID, VERSION, script_from
from gflow.store.swapping import swap_in

MAGIC = b"SQLite format 3\0"
HEADER = 100
TABLES = frozenset({"meta", "jobs", "holds", "submissions", "blobs"})
WAY_OUT = "gflowd restore BACKUP puts a backup in its place; backups are in the data folder under backups"


def open_database(path: Path) -> sqlite3.Connection:
    """The open database, brought to the current schema; a new one if there is none."""
    try:
        path = _found(path)
        check_database(path)
        db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        try:
            prepare(db)
        except BaseException:
            db.close()
            raise
    except OSError as error:
        raise StoreError(f"the database {path} cannot be used: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StoreError(f"the database {path} cannot be used: {error}", hint=WAY_OUT) from error
    return db


def prepare(db: sqlite3.Connection) -> None:
    """Set the modes that make a commit durable, and migrate."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    migrate(db)
    db.execute("PRAGMA foreign_keys = ON")


def migrate(db: sqlite3.Connection) -> None:
    """Bring a database to the current schema, in one transaction."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version < VERSION:
        db.executescript(script_from(version))


# ---------------------------------------------------------------- a new one


def _found(path: Path) -> Path:
    """Where the database really is; made there if there is none."""
    database = files.real(path)
    swap_in(database)  # a restore that was cut off goes on
    if database.exists():
        return database
    if path.is_symlink():
        raise StoreError(f"{path} points to {database}, and there is nothing", hint="is its disk mounted?")
    for suffix in files.LOGS:
        if beside(database, suffix).exists():
            raise StoreError(
                f"the database {database} is gone, but its log {database.name}{suffix} is there", hint=WAY_OUT
            )
    _create(database)
    return database


def _create(path: Path) -> None:
    """Build it under another name and put it in place whole: a power cut leaves none, or all of it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = beside(path, ".new")
    files.remove(new)
    files.make_private(new)
    with closing(files.connect(new)) as db:
        # No log yet: what cannot be written is an error here, and not a silence when the log is closed.
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute("PRAGMA synchronous = OFF")
        migrate(db)
    files.put_in_place(new, path)


# ---------------------------------------------------------------- one that is there


def check_database(path: Path) -> None:
    """Refuse a file that is not ours or not whole, and leave it and its log exactly as they are."""
    check_header(path)
    with closing(files.connect_unseen(path)) as db:
        check_structure(db, path)


def check_header(path: Path) -> None:
    """Refuse what is not ours by its first bytes: SQLite changes files beside it on mere opening."""
    if not path.is_file():  # a pipe would be read for ever
        raise StoreError(f"{path} is no file, so it cannot be the database")
    with path.open("rb") as file:
        head = file.read(HEADER)
    if not head:
        raise StoreError(
            f"{path} is damaged: it is empty", hint=f"{WAY_OUT}; without that file gflow starts anew"
        )
    if not head.startswith(MAGIC) or len(head) < HEADER:
        raise StoreError(f"{path} is damaged or no database: it does not start like one", hint=WAY_OUT)
    _check_marks(path, int.from_bytes(head[68:72], "big"), int.from_bytes(head[60:64], "big"))
    size = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    have = path.stat().st_size
    has_log = any(beside(path, suffix).exists() for suffix in files.LOGS)
    if not has_log and pages * (65536 if size == 1 else size) > have:
        raise StoreError(f"{path} is damaged: it should be longer than its {have} bytes", hint=WAY_OUT)


def check_structure(db: sqlite3.Connection, path: Path) -> None:
    """Read everything a daemon starts from, so that damage shows now and not in the middle of a job."""
    # Once more: the log may have another first page.
    _check_marks(
        path, *(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    )
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    missing = TABLES - tables
    if missing:
        raise StoreError(f"{path} is damaged: it has no table {min(missing)}", hint=WAY_OUT)
    problems = [row[0] for row in db.execute("PRAGMA integrity_check(1)")] if _is_small(path) else ["ok"]
    if problems != ["ok"]:
        raise StoreError(f"{path} is damaged: {in_one_line(problems[0])}", hint=WAY_OUT)


def in_one_line(problem: str) -> str:
    """What a check of SQLite's found, without the headline it sometimes has."""
    return problem.splitlines()[-1]


def _check_marks(path: Path, application: int, version: int) -> None:
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not a gflow database, so it is left alone", hint=WAY_OUT)
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer gflow (schema {version}, this one knows {VERSION})",
            hint="install that gflow again, or move the file away to start empty",
        )


def _is_small(path: Path) -> bool:
    """A whole check costs a second per 100 MB; larger files are checked when they are backed up."""
    return path.stat().st_size < 50_000_000
