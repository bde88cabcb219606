"""`gflowd reload`: this process becomes the next daemon, by exec. It keeps its listening socket and its lock,
so that clients that connect meanwhile wait instead of being refused, and no other daemon can start."""

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
# The original limit of open files, before the daemon raises it: jobs of the next daemon get it, too.
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)


def inherited_fd(name: str) -> int | None:
    """A descriptor that the previous daemon left open; None if there is none."""
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
    """Whether this process was a daemon before its exec."""
    return LOCK in os.environ


def ignore_reload_signal() -> None:
    """Ignore SIGUSR1 during the start: a reload is under way already.

    With a handler instead of SIG_IGN, which child processes would inherit.
    """
    signal.signal(signal.SIGUSR1, lambda *_: None)


def inherited_listener() -> socket.socket | None:
    fd = inherited_fd(LISTENER)
    return None if fd is None else socket.socket(fileno=fd)


def become_next(listener: int, lock: int) -> NoReturn:
    """Replace this process by a new daemon, with the installed code and configuration."""
    for name, fd in ((LISTENER, listener), (LOCK, lock)):
        os.set_inheritable(fd, True)
        os.environ[name] = str(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    ask_for_slices(0)  # the default: processes that the next zygote forks inherit it
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the next daemon handles it
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
