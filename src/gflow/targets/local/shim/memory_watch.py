"""How much memory a job uses, and whether that is more than it may.

Where a control group holds the limit, the kernel counts and tells. Without one we are the watchdog.
A job without a limit is measured as well, for its peak.
"""

from __future__ import annotations

import os
import time
from itertools import islice

from gflow.targets.local.cgroups import Group
from gflow.targets.local.shim.process_tree import descendants, mapped_kib, resident_kib

# All processes together are measured from the first second on, ever more rarely, and never for more than half
# a percent of the time: counting a hundred gigabytes takes long. The watchdog adds up their sizes, in which
# shared pages are counted for each; only if that is more than the limit it has them measured. It takes 1.5
# percent of the time at most: it pauses for so many times what its last look took.
WATCHDOG_S = 0.2
WATCHDOG_SHARE = 66
FIRST_LOOK_S = 1.0
LOOK_MOST_S = 30.0
LOOK_SHARE = 200
MOST_PROCESSES = 1000


class Memory:
    """The memory of the job whose processes are below this one. `group`: what holds its limit."""

    def __init__(self, limit_mib: int, group: Group | None) -> None:
        self._group = group
        self._watched_kib = 0 if group else limit_mib << 10
        # Until the next time that all is measured, and when that is.
        self._pause_s, self._measure_at = FIRST_LOOK_S, 0.0
        self._seen_kib = 0
        self.is_exceeded = False

    def first_look(self) -> float | None:
        """Seconds until the first look; None: the kernel tells all."""
        told = self._group is not None and self._group.peak_kib() is not None
        return None if told else WATCHDOG_S if self._watched_kib else FIRST_LOOK_S

    def look(self) -> float:
        """Look once; seconds until the next look."""
        began = time.process_time()
        pids = list(islice(descendants(os.getpid()), None if self._watched_kib else MOST_PROCESSES))
        is_large = 0 < self._watched_kib < mapped_kib(pids)
        took_s = time.process_time() - began
        if is_large or time.monotonic() >= self._measure_at:
            measuring_s = self._measure(pids)
            took_s += measuring_s if is_large else 0.0
        if not self._watched_kib:
            return self._measure_at - time.monotonic()
        return max(WATCHDOG_S, took_s * WATCHDOG_SHARE)

    def _measure(self, pids: list[int]) -> float:
        """Measure all of them; the CPU time that it took."""
        began = time.process_time()
        # A process alone is measured better by the kernel, at its end.
        used = resident_kib(pids) if self._watched_kib or len(pids) > 1 else 0
        self.saw(used)
        self.is_exceeded = 0 < self._watched_kib < used
        took_s = time.process_time() - began
        self._pause_s = min(self._pause_s * 2, LOOK_MOST_S)
        self._measure_at = time.monotonic() + max(self._pause_s, took_s * LOOK_SHARE)
        return took_s

    def saw(self, kib: int) -> None:
        """Somebody measured this much; the most counts."""
        self._seen_kib = max(self._seen_kib, kib)

    def peak_kib(self) -> int:
        """What the kernel counted against the limit; else the most that was seen."""
        counted = self._group.peak_kib() if self._group else None
        return counted or self._seen_kib

    def kernel_killed(self) -> bool:
        """Whether something of the job was killed at the limit."""
        return self._group is not None and self._group.out_of_memory()
