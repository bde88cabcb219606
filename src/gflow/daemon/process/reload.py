"""`gflowd reload`: this process becomes the next daemon, by exec. Its listening socket and its lock stay,
so clients that connect meanwhile wait instead of being refused, and nobody else can come first."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import sys
from contextlib import suppress
from typing import NoReturn

from gflow.daemon.process.cpu_slices import ask_for_slices

LISTENER, LOCK = "GFLOW_LISTENER_FD", "GFLOW_LOCK_FD"
# What this process was allowed before it asked for more: jobs of the next daemon are to begin with that, too.
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)


def inherited(name: str) -> int | None:
    """A descriptor that the daemon before us left open; None: there was none."""
    text = os.environ.pop(name, "")
    if not text.isdecimal():
        return None
    fd = int(text)
    with suppress(OSError):
        kind = os.fstat(fd).st_mode
        if stat.S_ISSOCK(kind) if name == LISTENER else stat.S_ISREG(kind):
            os.set_inheritable(fd, False)
            return fd
    return None


def is_successor() -> bool:
    """Whether this process was a daemon before, and only becomes the next one."""
    return LOCK in os.environ


def heed_reloads() -> None:
    """Until somebody obeys it, a reload asks for what happens anyway.

    By a handler: what is ignored stays ignored in all that we start.
    """
    signal.signal(signal.SIGUSR1, lambda *_: None)


def inherited_listener() -> socket.socket | None:
    fd = inherited(LISTENER)
    return None if fd is None else socket.socket(fileno=fd)


def become_next(listener: int, lock: int) -> NoReturn:
    """Start anew as the same process, with what is on the disk now."""
    for name, fd in ((LISTENER, listener), (LOCK, lock)):
        os.set_inheritable(fd, True)
        os.environ[name] = str(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    ask_for_slices(0)  # the usual ones: what the next zygote forks is born with them
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the next one listens for it
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
