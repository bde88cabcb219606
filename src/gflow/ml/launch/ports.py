"""A TCP port for the rendezvous of one launch.

It lies below the ephemeral range, so that no outgoing connection can take it before the first rank listens.
A lock file keeps other launches of gflow from choosing it.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gflow.errors import Refused

FIRST, LAST = 20_000, 32_767


@contextmanager
def free_port(folder: str | None = None) -> Iterator[int]:
    """Yield a free port, locked until the context ends."""
    folder = folder or os.path.join(tempfile.gettempdir(), f"gflow-ports-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for port in random.sample(range(FIRST, LAST + 1), 200):
        fd = os.open(os.path.join(folder, str(port)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _is_locked(fd) and _is_free(port):
                yield port
                return
        finally:
            os.close(fd)
    raise Refused(f"no free port between {FIRST} and {LAST}", hint="name one: --address HOST:PORT")


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
