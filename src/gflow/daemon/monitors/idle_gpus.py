"""Detects jobs that hold GPUs and do not use them.

The engine gets an event when a job becomes idle, each time the idle time has doubled, when the job uses its
GPUs again, and once when a job has been idle for longer than its limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gflow.core.events import Event, Idled, IdleSeen
from gflow.core.ids import JobKey
from gflow.core.lifecycle.limits import idle_of
from gflow.core.model import Idle, Moment
from gflow.daemon.monitors.gpu_monitor import HeldRun, WatchedRuns
from gflow.gpu.census import Report
from gflow.gpu.idle import IdleTime, IdleTracker

Make = Callable[[Moment], Event]


class IdleGpuMonitor:
    """Called from the loop after every full poll of the GPUs."""

    def __init__(self, after_s: int, post: Callable[[Make], None]) -> None:
        """`after_s`: seconds after which an idle GPU is shown as idle; 0: never."""
        self._after_s = after_s
        self._post = post
        self._tracker = IdleTracker()
        self._reported: dict[JobKey, Idle] = {}
        # Runs whose stop has been requested.
        self._stopping: set[str] = set()

    def looked(self, report: Report, watched: WatchedRuns) -> None:
        now = time.monotonic()
        self._tracker.see(report, watched.holders, now)
        unused = self._tracker.idle_times(now)
        idle = self._idle_jobs(watched.runs, unused)
        if idle != self._reported:
            self._reported = idle
            self._post(lambda at: IdleSeen(at=at, idle=idle))
        self._stopping &= watched.runs.keys()
        for run, held in watched.runs.items():
            if held.idle_limit_s and run not in self._stopping and run in unused:
                self._check_limit(run, held, unused[run])

    def _idle_jobs(
        self, runs: Mapping[str, HeldRun], unused: Mapping[str, Mapping[int, IdleTime]]
    ) -> dict[JobKey, Idle]:
        """The jobs to show as idle: those with GPUs that have been idle for `after_s` or longer."""
        found: dict[JobKey, Idle] = {}
        for run, of_gpu in unused.items() if self._after_s else ():
            late = {index: one for index, one in of_gpu.items() if one.seconds >= self._after_s}
            if late and run in runs:
                held = runs[run]
                found[held.key] = _idle(held, late, self._step(min(one.seconds for one in late.values())))
        return found

    def _step(self, seconds: float) -> float:
        """The idle time rounded down to `after_s` times a power of 2, so that few events are sent."""
        step = self._after_s
        while step * 2 <= seconds:
            step *= 2
        return step

    def _check_limit(self, run: str, held: HeldRun, of_gpu: Mapping[int, IdleTime]) -> None:
        """Request the stop of a run that has used none of its GPUs for longer than its limit."""
        seconds = min(one.seconds for one in of_gpu.values())
        if seconds >= held.idle_limit_s:
            self._stopping.add(run)
            idle = _idle(held, of_gpu, seconds)
            self._post(lambda at: Idled(at=at, key=held.key, attempt=held.attempt, idle=idle))


def _idle(held: HeldRun, unused: Mapping[int, IdleTime], seconds: float) -> Idle:
    gpus = tuple(sorted(unused))
    return idle_of(held.attempt, gpus, seconds, is_bare=all(one.is_bare for one in unused.values()))
