"""Stop requests of this process: SIGTERM, Ctrl-C, gflow's stop file, or the approaching time limit.

The SIGTERM handler sets a flag and calls the previous handler. Ctrl-C is a stop request only within
`catch_interrupt`. The other sources are checked when `is_asked` is read. SIGUSR1 and SIGUSR2 are left to the
program. Nothing here needs PyTorch.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

# Minimum margin before the time limit: enough to write a small checkpoint on a busy disk.
LEAST_MARGIN_S = 5.0


class Stop:
    """Collects stop requests. `reason` is empty until this process is asked to stop."""

    def __init__(self, margin_s: float | None = None, environ: Mapping[str, str] | None = None) -> None:
        """`margin_s`: how long before the time limit to stop. By default twice the slowest step or save, and
        only for a job that is requeued; any other job uses its full time."""
        environ = os.environ if environ is None else environ
        self.reason = ""
        self.margin_s = margin_s
        self._stop_file = environ.get("GFLOW_STOP_FILE", "")
        self._clock, self._deadline = _deadline(environ, wanted=margin_s is not None)
        self._before: Any = None
        self._is_chained = True
        self._slowest_s = 0.0
        self._pid = 0
        self.is_listening = False

    def listen(self, *, chained: bool = True) -> Stop:
        """Install the SIGTERM handler. Only the main thread can; other threads have only the stop file.

        With `chained` the previous handler is called as well.
        """
        self._is_chained = chained
        if threading.current_thread() is threading.main_thread() and not self.is_listening:
            self._before = signal.signal(signal.SIGTERM, self._on_term)
            self.is_listening = True
        return self

    def close(self) -> None:
        """Restore the previous SIGTERM handler, unless the program has installed another one since."""
        if self.is_listening and signal.getsignal(signal.SIGTERM) == self._on_term:
            signal.signal(signal.SIGTERM, self._before)
        self.is_listening = False

    @contextmanager
    def catch_interrupt(self) -> Iterator[None]:
        """Make the first Ctrl-C within this context a stop request; the second one ends the program.

        A SIGINT handler of the program is left alone, and threads other than the main one have no handlers.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        self._pid = os.getpid()
        signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            with suppress(ValueError):  # a generator that is closed by another thread
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a worker that loads data: its main process decides
            return
        if self.reason:
            raise KeyboardInterrupt
        self.reason = "Ctrl-C"
        os.write(
            2, b"\ngflow: Ctrl-C: the run saves a checkpoint after this step; press again to end at once\n"
        )

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or "TERM"
        if self._is_chained and callable(self._before):
            self._before(number, frame)

    def record_duration(self, seconds: float) -> None:
        """Record the duration of a step or save: the margin before the limit must cover it."""
        self._slowest_s = max(self._slowest_s, seconds)

    def ask(self, reason: str) -> None:
        """Request a stop from within the program."""
        self.reason = self.reason or reason

    @property
    def is_asked(self) -> bool:
        """Whether this process was asked to stop. Costs a few microseconds."""
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
    """Return the clock of the time limit, and the deadline on it; 0: no limit to observe."""
    is_observed = wanted or environ.get("GFLOW_REQUEUE") == "1"
    try:
        if environ.get("GFLOW_DEADLINE"):
            return boot_s, float(environ["GFLOW_DEADLINE"]) if is_observed else 0.0
        if environ.get("GFLOW_END_TIME"):
            return time.time, float(environ["GFLOW_END_TIME"]) if is_observed else 0.0
        if environ.get("SLURM_JOB_END_TIME"):
            return time.time, float(environ["SLURM_JOB_END_TIME"])
    except ValueError:
        pass
    return time.monotonic, 0.0
