"""A port of this machine for the processes of one launch to meet at.

Below those that the kernel gives to outgoing connections, so that none of them can take it between now and
when the first rank listens; and locked, so that no other launch of gflow can.
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
    """A port that is nobody's, and stays ours until the end."""
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
