"""One daemon per data folder: an flock that the kernel releases with the process."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
import time
from pathlib import Path

from gflow.errors import Refused
from gflow.store.files import make_folders
from gflow.store.location import unusable_error

# Seconds for which a program that a killed daemon was just starting may still hold its lock.
LEFTOVER_S = 2.0


def lock_path(data: Path) -> Path:
    return data / "gflowd.lock"


def take(data: Path, hint: str = "gflowd status shows it, gflowd restart replaces it") -> int:
    """Lock the data folder for this process; refused with the pid of the daemon that has it, and the hint."""
    try:
        return _take(data, hint)
    except OSError as error:
        raise unusable_error(data, error) from error


def _take(data: Path, hint: str) -> int:
    make_folders(data)
    if data.stat().st_uid != os.geteuid():  # its owner could have prepared the contents
        raise Refused(
            f"{data} belongs to another user", hint="a daemon needs a folder of its own user: check $HOME"
        )
    mode = data.stat().st_mode
    if mode & 0o077 and not mode & stat.S_ISVTX:  # older versions created it with the umask
        data.chmod(0o700)
    fd = os.open(lock_path(data), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + LEFTOVER_S
    while not _lock(fd):
        owner = os.pread(fd, 256, 0).decode(errors="replace").strip()
        if not _is_gone(owner) or time.monotonic() > end:
            os.close(fd)
            raise Refused(
                f"a gflow daemon already runs on {data} ({owner or 'it is just starting'})",
                hint=hint,
            )
        time.sleep(0.02)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_gone(owner: str) -> bool:
    """Whether the daemon that wrote these words has ended, on this machine."""
    found = re.fullmatch(r"pid (\d+) on (.*)", owner)
    if found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
