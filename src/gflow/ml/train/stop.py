"""Whether this process was asked to stop: by TERM, by gflow's stop file, or because its time is nearly up.

The handler of TERM sets a flag and calls whatever handled TERM before; everything else is looked at when
somebody asks. USR1 and USR2 are left alone: others use them. Nothing here needs PyTorch.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

# Before the limit, at least: what it takes to write a small checkpoint on a busy disk.
LEAST_MARGIN_S = 5.0


class Stop:
    """`reason` is empty until this process is to stop; from then on it says why."""

    def __init__(self, margin_s: float | None = None, environ: Mapping[str, str] | None = None) -> None:
        """`margin_s`: how long before the time limit to stop. By default as long as saving takes, and only
        where the job goes on later; a job that is not requeued uses its time to the end."""
        environ = os.environ if environ is None else environ
        self.reason = ""
        self.margin_s = margin_s
        self._stop_file = environ.get("GFLOW_STOP_FILE", "")
        self._clock, self._deadline = _deadline(environ, wanted=margin_s is not None)
        self._before: Any = None
        self._is_chained = True
        self._slowest_s = 0.0
        self.is_listening = False

    def listen(self, *, chained: bool = True) -> Stop:
        """Handle TERM from now on. Only the main thread can; elsewhere the stop file must do.

        Whoever handled it before is called, too, unless it is not to be `chained`.
        """
        self._is_chained = chained
        if threading.current_thread() is threading.main_thread() and not self.is_listening:
            self._before = signal.signal(signal.SIGTERM, self._terminated)
            self.is_listening = True
        return self

    def close(self) -> None:
        """TERM goes to whoever had it before, unless somebody else has it now."""
        if self.is_listening and signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, self._before)
        self.is_listening = False

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or "TERM"
        if self._is_chained and callable(self._before):
            self._before(number, frame)

    def took(self, seconds: float) -> None:
        """A step or a save took so long: the margin before the limit must have room for it."""
        self._slowest_s = max(self._slowest_s, seconds)

    def ask(self, reason: str) -> None:
        """Stop for a reason of the program's own."""
        self.reason = self.reason or reason

    @property
    def is_asked(self) -> bool:
        """Whether this process is to stop. A few microseconds."""
        if not self.reason:
            if self._stop_file and os.path.exists(self._stop_file):
                self.reason = "stop file"
            elif self._deadline and self.left_s() <= self._margin_s():
                self.reason = "time limit"
        return bool(self.reason)

    def left_s(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return self._deadline - self._clock() if self._deadline else float("inf")

    def _margin_s(self) -> float:
        return max(LEAST_MARGIN_S, 2 * self._slowest_s) if self.margin_s is None else self.margin_s


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _deadline(environ: Mapping[str, str], *, wanted: bool) -> tuple[Callable[[], float], float]:
    """The clock that counts, and when the limit is reached on it; 0: there is none to heed."""
    try:
        if environ.get("GFLOW_DEADLINE") and (wanted or environ.get("GFLOW_REQUEUE") == "1"):
            return boot_s, float(environ["GFLOW_DEADLINE"])
        if environ.get("SLURM_JOB_END_TIME"):
            return time.time, float(environ["SLURM_JOB_END_TIME"])
    except ValueError:
        pass
    return time.monotonic, 0.0
