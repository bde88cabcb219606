"""Leases: one lock per GPU in a folder that all users of the machine share.

Daemons of different users know nothing of each other; the shim of every job holds the locks
of its GPUs for the job's life, so no GPU is given out twice whoever asks. A lock is an flock
on a file named after the GPU's UUID: it dies with its holder, and taking one needs no right
to write somebody else's file.

Standard library only: this runs beside jobs.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
from contextlib import suppress

# The end of an attempt whose GPUs another user's daemon had given out first.
LEASED = "Leased"
FOLDERS = ("/run/lock/gflow", "/tmp/gflow-leases")


def lease_folder(folders: tuple[str, ...] = FOLDERS) -> str:
    """The shared folder: the first that is there or can be made. Empty: this machine has none."""
    chosen = os.environ.get("GFLOW_LEASE_DIR")
    for folder in (chosen,) if chosen else folders:
        with suppress(OSError):
            with suppress(FileExistsError):
                os.mkdir(folder)
                os.chmod(folder, 0o1777)
            found = os.lstat(folder)
            if stat.S_ISDIR(found.st_mode) and (found.st_mode & stat.S_ISVTX or found.st_uid == os.getuid()):
                return folder
    return ""


def take(paths: list[str]) -> list[int] | None:
    """Lock all of these files, or none."""
    held: list[int] = []
    for path in paths:
        fd = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            release([*held, fd])
            return None
        held.append(fd)
    return held


def release(held: list[int]) -> None:
    for fd in held:
        os.close(fd)


def holder_of(path: str) -> int | None:
    """The uid of whoever holds this lock; None if nobody does."""
    try:
        fd = _open(path)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner_of_lock(os.fstat(fd).st_ino)
    finally:
        os.close(fd)
    return None


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _owner_of_lock(inode: int) -> int:
    """The uid of the process that /proc/locks names for this file; -1 if it cannot be told."""
    with suppress(OSError), open("/proc/locks") as file:
        for line in file:
            fields = line.split()
            if "FLOCK" in fields and fields[5].endswith(f":{inode}"):
                return os.stat(f"/proc/{fields[4]}").st_uid
    return -1


def shown(uid: int) -> str:
    """`gflow of bob`."""
    try:
        return f"gflow of {pwd.getpwuid(uid).pw_name}"
    except (KeyError, OverflowError):
        return "gflow of somebody else"
