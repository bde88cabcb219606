"""Opening the database: only an undamaged one of gflow, of a known version. Other files are not changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from gflow.errors import GflowError, StoreError
from gflow.store import files, ownership
from gflow.store.files import beside
from gflow.store.location import is_of_the_disk, unusable_error
from gflow.store.schema import APPLICATION_ID, VERSION, script_from
from gflow.store.snapshot import back_up, in_one_line, swap_in

MAGIC = b"SQLite format 3\0"
HEADER = 100
TABLES = frozenset({"meta", "jobs", "holds", "submissions", "blobs"})
WAY_OUT = "gflowd restore BACKUP puts a backup in its place; backups are in the data folder under backups"


# Exceptions of a read from a damaged database.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
Verify = Callable[[sqlite3.Connection], None]


def open_database(
    path: Path, kind: str | None = None, verify: Verify = lambda db: None
) -> sqlite3.Connection:
    """Open the database and migrate it to the current schema; create it if there is none.

    `kind`: the daemon that opens it (see `ownership`); None: a tool or test that runs no jobs.
    `verify` reads all that a daemon loads at its start; if it fails after a migration, that is rolled back.
    """
    try:
        path = _found(path, kind)
        check_database(path, kind)
        db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        try:
            prepare(db, path, kind, verify)
        except BaseException:
            db.close()
            raise
    except OSError as error:
        raise unusable_error(path.parent, error) from error
    except UnicodeDecodeError as error:  # also in SQLite's own messages, which quote the file's content
        raise StoreError(f"{path} is damaged: a text in it is not UTF-8", hint=WAY_OUT) from error
    except sqlite3.Error as error:
        if is_of_the_disk(error):
            raise unusable_error(path.parent, error) from error
        raise StoreError(f"the database {path} cannot be used: {error}", hint=WAY_OUT) from error
    return db


def prepare(db: sqlite3.Connection, path: Path, kind: str | None, verify: Verify) -> None:
    """Set the modes that make a commit durable, and migrate."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    version = version_of(db)
    if version < VERSION:
        back_up(path, beside(path, f".before-schema-{VERSION}"))
        migrate(db, kind, verify)
    elif kind is not None:
        ownership.mark(db, kind)
    if kind is not None:
        files.lengthen_log(path)
    db.execute("PRAGMA foreign_keys = ON")


def migrate(db: sqlite3.Connection, kind: str | None, verify: Verify = lambda db: None) -> None:
    """Migrate a database to the current schema in one transaction, committed if it can be read afterwards."""
    version = version_of(db)
    try:
        db.executescript(script_from(version))
        if kind is not None:
            ownership.mark(db, kind)
        _verified(db, verify, version)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _verified(db: sqlite3.Connection, verify: Verify, version: int) -> None:
    try:
        verify(db)
    except (GflowError, sqlite3.Error):
        raise
    except Exception as error:
        raise StoreError(
            f"the database of schema {version} cannot be read after its migration to {VERSION}: {error}",
            hint="it was not changed, and the gflow that wrote it can open it; please report this as a bug",
        ) from error


def unreadable(error: Exception) -> StoreError:
    """The error for a read that failed with one of UNREADABLE."""
    if isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error):
        return StoreError("the database is damaged: a text in it is not UTF-8", hint=WAY_OUT)
    return StoreError(f"the database cannot be read: {error}")


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


# ---------------------------------------------------------------- a new one


def _found(path: Path, kind: str | None) -> Path:
    """The real path of the database; it is created if there is none."""
    database = files.real(path)
    swap_in(database)  # finish an interrupted restore
    if database.exists():
        return database
    if path.is_symlink():
        raise StoreError(f"{path} points to {database}, which does not exist", hint="is its disk mounted?")
    for suffix in files.LOGS:
        if beside(database, suffix).exists():
            raise StoreError(
                f"the database {database} is gone, but its log {database.name}{suffix} is there", hint=WAY_OUT
            )
    _create(database, kind)
    return database


def _create(path: Path, kind: str | None) -> None:
    """Create it under another name, then rename it: after a power failure it is missing or complete."""
    files.make_folders(path.parent)
    new = beside(path, ".new")
    files.remove(new)
    files.make_private(new)
    with closing(files.connect(new)) as db:
        # No log yet: a failed write is an error here, and would be ignored when the log is closed.
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute("PRAGMA synchronous = OFF")
        migrate(db, kind)
    files.put_in_place(new, path)


# ---------------------------------------------------------------- an existing one


def check_database(path: Path, kind: str | None = None) -> None:
    """Refuse a file that is damaged or not gflow's, and leave it and its log unchanged.

    `kind`: the daemon that opens it; the database of another kind is refused.
    """
    check_header(path)
    with closing(files.connect_unseen(path)) as db:
        check_structure(db, path)
        if kind is not None:
            ownership.check(db, path, kind)


def check_header(path: Path) -> None:
    """Refuse a file that is not SQLite's, by its first bytes: SQLite changes logs of a file that it opens."""
    if not path.is_file():  # reading a pipe would block
        raise StoreError(f"{path} is no file, so it cannot be the database")
    with path.open("rb") as file:
        head = file.read(HEADER)
    if not head:
        raise StoreError(
            f"{path} is damaged: it is empty",
            hint=f"{WAY_OUT}; without that file gflow starts with an empty queue",
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
    """Read everything that a daemon loads at its start, so that damage is found now and not during a job."""
    # Check again: the log may contain another first page.
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


def _check_marks(path: Path, application: int, version: int) -> None:
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is not a gflow database, so it is not changed", hint=WAY_OUT)
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer gflow (schema {version}, this one knows {VERSION})",
            hint="install that gflow again, or move the file away to start empty",
        )


def _is_small(path: Path) -> bool:
    """Whether to check the whole file: that takes a second per 100 MB. Backups check larger files."""
    return path.stat().st_size < 50_000_000
