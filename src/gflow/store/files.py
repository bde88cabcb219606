"""Operations on database files besides SQL: private creation, fsync, reading without side effects."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

# Files that SQLite keeps beside a database: two kinds of log, and shared memory.
LOGS = ("-wal", "-journal")
COMPANIONS = (*LOGS, "-shm")
# The log at its first reuse: 1000 pages of 4 KiB (wal_autocheckpoint), each with a header of 24 bytes.
LOG_BYTES = 1 << 22
# With less free space than this, no file is made longer than it has to be.
SHORT_BYTES = 1 << 28


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def real(path: Path) -> Path:
    """The file itself: SQLite keeps its logs there and not beside a symbolic link."""
    return Path(os.path.realpath(path))


def connect(path: Path, how: str = "mode=rw", *, check_same_thread: bool = True) -> sqlite3.Connection:
    """Connect to an existing database; never creates one."""
    return sqlite3.connect(
        f"{path.as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        timeout=30,
        check_same_thread=check_same_thread,
    )


def connect_unseen(path: Path) -> sqlite3.Connection:
    """Connect to a database that is not in use, without changing any file, not even on close.

    An ordinary connection applies the log when it closes, and creates a log if there is none.
    """
    if beside(path, "-journal").exists():
        return connect(path)  # an interrupted transaction must be rolled back before any read
    return connect(path, "mode=ro" if beside(path, "-wal").exists() else "immutable=1")


def make_folders(folder: Path) -> None:
    """Make a folder and its missing parents, all accessible to the owner only.

    `mkdir(parents=True)` sets the mode of the last folder only.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def make_private(path: Path) -> None:
    """Create an empty file for the owner only, before SQLite would create it with the umask."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def lengthen_log(path: Path) -> None:
    """Write zeros to the end of a database's log, up to the size at which SQLite starts it again.

    The sync of a commit that makes the log longer also writes the journal of the file system. Syncs of seven
    pages took 0.14 to 0.47 ms (medians of four rounds on a disk in use), and 0.11 to 0.18 ms with the zeros,
    which SQLite ignores. Does nothing where space is short.
    """
    disk = os.statvfs(path.parent)
    if disk.f_bavail * disk.f_frsize < SHORT_BYTES:
        return
    with suppress(OSError), open(beside(path, "-wal"), "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.write(bytes(max(0, LOG_BYTES - size)))
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Remove the files of an unfinished database, ignoring errors."""
    for suffix in ("", *COMPANIONS):
        with suppress(OSError):
            beside(path, suffix).unlink()


def put_in_place(new: Path, path: Path) -> None:
    """Rename a finished file into place: after a power failure the old or the new file is there, complete."""
    sync(new)
    new.rename(path)
    sync(path.parent)


def replace_private(path: Path, content: bytes) -> None:
    """Replace the content of a file that only its owner may read, durably. Raises OSError."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
    put_in_place(new, path)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
