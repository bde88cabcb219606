"""The steward: looks after GPUs that jobs have and do not use.

It tells the engine when a job begins to count as idle, again each time that has lasted twice as long, and
when the job used its GPUs again; and once when a job has been idle for longer than it may.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gflow.core.events import Event, Idled, IdleSeen
from gflow.core.ids import JobKey
from gflow.core.lifecycle.limits import idle_of
from gflow.core.model import Idle, Moment
from gflow.daemon.monitors.gpu_monitor import Held, Watched
from gflow.gpu.census import Report
from gflow.gpu.idle import Idling, Unused

Make = Callable[[Moment], Event]


class IdleGpuMonitor:
    """Called from the loop after every look."""

    def __init__(self, after_s: int, post: Callable[[Make], None]) -> None:
        """`after_s`: how long a GPU may lie idle until that is shown; 0: for ever."""
        self._after_s = after_s
        self._post = post
        self._idling = Idling()
        self._told: dict[JobKey, Idle] = {}
        # Runs that are to be stopped already.
        self._over: set[str] = set()

    def looked(self, report: Report, watched: Watched) -> None:
        now = time.monotonic()
        self._idling.see(report, watched.holders, now)
        unused = self._idling.unused(now)
        idle = self._shown(watched.runs, unused)
        if idle != self._told:
            self._told = idle
            self._post(lambda at: IdleSeen(at=at, idle=idle))
        self._over &= watched.runs.keys()
        for run, held in watched.runs.items():
            if held.idle_limit_s and run not in self._over and run in unused:
                self._judge(run, held, unused[run])

    def _shown(
        self, runs: Mapping[str, Held], unused: Mapping[str, Mapping[int, Unused]]
    ) -> dict[JobKey, Idle]:
        """Jobs with GPUs that have been idle for too long, as people are to see them."""
        found: dict[JobKey, Idle] = {}
        for run, of_gpu in unused.items() if self._after_s else ():
            late = {index: one for index, one in of_gpu.items() if one.seconds >= self._after_s}
            if late and run in runs:
                held = runs[run]
                found[held.key] = _idle(held, late, self._step(min(one.seconds for one in late.values())))
        return found

    def _step(self, seconds: float) -> float:
        """How long, in steps that double: not every look is news."""
        step = self._after_s
        while step * 2 <= seconds:
            step *= 2
        return step

    def _judge(self, run: str, held: Held, of_gpu: Mapping[int, Unused]) -> None:
        """Have a run stopped that has used none of its GPUs for longer than it may."""
        seconds = min(one.seconds for one in of_gpu.values())
        if seconds >= held.idle_limit_s:
            self._over.add(run)
            idle = _idle(held, of_gpu, seconds)
            self._post(lambda at: Idled(at=at, key=held.key, attempt=held.attempt, idle=idle))


def _idle(held: Held, unused: Mapping[int, Unused], seconds: float) -> Idle:
    gpus = tuple(sorted(unused))
    return idle_of(held.attempt, gpus, seconds, is_bare=all(one.is_bare for one in unused.values()))
