"""The folders of ours in which jobs' control groups are made: one in each hierarchy, held while it is needed.

A daemon, its zygote and its shims lock them as long as they live; forked processes share the lock.
An empty one that nobody holds was left by somebody who was killed: whoever comes by drops it.

Standard library only: this runs beside jobs.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

PREFIX = "gflow-"
OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_held: dict[str, int] = {}


def hold(folder: str, tag: str) -> str:
    """Make our folder in this one and hold it; empty if we may not use it."""
    if not folder:
        return ""
    path = f"{folder}/{PREFIX}{tag}"
    try:
        while path not in _held:
            os.makedirs(path, exist_ok=True)
            if (fd := _locked(path)) is not None:
                _held[path] = fd
        return path if os.access(f"{path}/cgroup.procs", os.W_OK) else ""
    except OSError:
        return ""


def let_go(path: str) -> None:
    """Hold it no longer; drop it if nobody else does and no job has a group in it."""
    if path in _held:
        os.close(_held.pop(path))
    _sweep(path)


def sweep_beside(path: str) -> None:
    """Drop what killed daemons left beside this one of ours."""
    above = os.path.dirname(path)
    with suppress(OSError):
        for name in os.listdir(above):
            if name.startswith(PREFIX) and f"{above}/{name}" != path:
                _sweep(f"{above}/{name}")


def _sweep(path: str) -> None:
    with suppress(OSError):
        fd = os.open(path, OPEN)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)
        finally:
            os.close(fd)


def _locked(path: str) -> int | None:
    """The folder, opened and locked; None: it was swept away meanwhile."""
    try:
        fd = os.open(path, OPEN)
    except FileNotFoundError:
        return None
    fcntl.flock(fd, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            return fd
    os.close(fd)
    return None
