"""Short episodes of real-time priority (SCHED_FIFO) for a shim that is root.

A job that forks and exits all the time makes zombies faster than a shim of ordinary priority can reap them,
until the machine has no pids left, and its processes evade the shim's kills. But a real-time process keeps
all others off its CPU. So the shim is real-time only while it reaps or kills, for 0.1 s at a time and for at
most half of the time. `native/supervise.c` does the same in C.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

# Forked processes do not inherit it.
POLICY = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
EPISODE_S = 0.1


class Realtime:
    """Our scheduling policy. A native shim that became this process may have left it real-time."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._not_before = 0.0
        if os.sched_getscheduler(0) == POLICY:
            self._began()

    def begin(self) -> bool:
        """Become real-time, if allowed; whether we are."""
        if self._since is None and time.monotonic() >= self._not_before:
            with suppress(PermissionError):
                os.sched_setscheduler(0, POLICY, os.sched_param(1))
                self._began()
        return self._since is not None

    def _began(self) -> None:
        self._since = time.monotonic()
        signal.signal(signal.SIGALRM, lambda *_: self.end())
        signal.setitimer(signal.ITIMER_REAL, EPISODE_S)

    def end(self) -> None:
        """Return to ordinary priority, for at least as long as the episode lasted."""
        since, self._since = self._since, None  # first: the timer may fire at any point
        if since is None:
            return
        now = time.monotonic()
        self._not_before = now + (now - since)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        signal.setitimer(signal.ITIMER_REAL, 0)
