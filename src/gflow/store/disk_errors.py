"""What the disk under a folder is like when something cannot be written there, and what to do about it."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from gflow.errors import StoreError

# SQLite's primary result codes that are about the disk, and not about what is in the file.
_OF_THE_DISK = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (*_FULL, errno.EROFS, errno.EIO)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


def is_of_the_disk(error: sqlite3.Error) -> bool:
    """Whether the disk failed; otherwise the database itself is at fault."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK


def is_about_a_disk(error: OSError) -> bool:
    """Whether the disk failed, or the rights to a file on it are missing."""
    return error.errno in _BROKEN or (error.errno in _FORBIDDEN and error.filename is not None)


def unusable(folder: Path, error: OSError | sqlite3.Error) -> StoreError:
    """The error for a folder that a daemon cannot work in: why not, and what to do."""
    place = _nearest(folder)
    number = getattr(error, "errno", None)
    disk = _disk_of(place)
    if number in _FULL or (disk is not None and disk.f_blocks and not disk.f_bavail):
        why, hint = "its disk is full", "make room there and start gflowd again; nothing is lost"
    elif number == errno.EROFS or (disk is not None and disk.f_flag & os.ST_RDONLY):
        why, hint = "its file system is read-only", "mount it writable (dmesg may say why it is not)"
    elif not os.access(place, os.W_OK | os.X_OK):
        why = f"{'it' if place == folder else place} may not be written to"
        hint = f"see whose it is: ls -ld {place}"
    else:
        why = str(error)  # of the operating system's, with the file
        hint = "see whose the files there are (ls -l), and whether the disk works (dmesg)"
    return StoreError(f"gflowd cannot work in {folder}: {why}", hint=hint)


def _nearest(folder: Path) -> Path:
    """The folder, or the first above it that is there."""
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


def _disk_of(place: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(place)
    except OSError:
        return None
