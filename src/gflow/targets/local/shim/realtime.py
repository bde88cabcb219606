"""Running before the job does, where we are root: SCHED_FIFO for a moment.

A job that forks and leaves all the time makes dead processes faster than a shim of ordinary priority can
collect them, until the machine has no pids left, and is elsewhere whenever the shim kills. But a real-time
process keeps all others from its CPU. So a shim is one only while it collects or kills, for a tenth of a
second at a time and for half of the time at most. `plain/watch.c` says the same in C.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

# What we fork does not inherit it.
POLICY = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
EPISODE_S = 0.1


class Realtime:
    """Our scheduling policy. A plain shim whose place we took may have left us its own."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._not_before = 0.0
        if os.sched_getscheduler(0) == POLICY:
            self._began()

    def begin(self) -> bool:
        """Run before all others from now on; whether we do."""
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
        """Run as all others do, for as long as we did not."""
        since, self._since = self._since, None  # first of all: the timer may come at any place
        if since is None:
            return
        now = time.monotonic()
        self._not_before = now + (now - since)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        signal.setitimer(signal.ITIMER_REAL, 0)
