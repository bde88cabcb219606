"""Measure a job's memory, and detect that it exceeds its limit.

Where a control group enforces the limit, the kernel counts. Otherwise the shim polls as a watchdog. A job
without a limit is measured too, for its peak.
"""

from __future__ import annotations

import os
import time
from itertools import islice

from gflow.targets.local.cgroups import Group
from gflow.targets.local.shim.process_tree import descendants, mapped_kib, resident_kib

# The sum over all processes is measured from the first second on, at growing intervals and for at most 0.5 %
# of the time: measuring a hundred gigabytes is slow. The watchdog first adds up the resident sizes, which
# count shared pages for each process, and measures exactly only if that sum exceeds the limit. It uses at
# most 1.5 % of the time: it pauses for WATCHDOG_SHARE times the duration of its last look.
WATCHDOG_S = 0.2
WATCHDOG_SHARE = 66
FIRST_LOOK_S = 1.0
LOOK_MOST_S = 30.0
LOOK_SHARE = 200
MOST_PROCESSES = 1000


class Memory:
    """Memory of the job, which is all processes below this one.

    `group`: the control group with its limit. `advised_mib`: a limit that is only watched.
    """

    def __init__(self, limit_mib: int, group: Group | None, advised_mib: int = 0) -> None:
        self._group = group
        self._watched_kib = 0 if group else limit_mib << 10
        self._advised_kib = advised_mib << 10
        # Interval until the next exact measurement, and its time.
        self._pause_s, self._measure_at = FIRST_LOOK_S, 0.0
        self._seen_kib = 0
        self.is_exceeded = False

    def first_look(self) -> float | None:
        """Seconds until the first look; None: the kernel reports the peak, no polling is needed."""
        has_kernel_peak = self._group is not None and self._group.peak_kib() is not None
        return None if has_kernel_peak else WATCHDOG_S if self._watched_kib else FIRST_LOOK_S

    def look(self) -> float:
        """Measure once; seconds until the next look."""
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
        """Measure these processes exactly; the CPU time that it took."""
        began = time.process_time()
        # The peak of a single process comes from the kernel when it is reaped, which is exact.
        has_limit = self._watched_kib or self._advised_kib
        used = resident_kib(pids) if has_limit or len(pids) > 1 else 0
        self.note_kib(used)
        self.is_exceeded = 0 < self._watched_kib < used
        took_s = time.process_time() - began
        self._pause_s = min(self._pause_s * 2, LOOK_MOST_S)
        self._measure_at = time.monotonic() + max(self._pause_s, took_s * LOOK_SHARE)
        return took_s

    def note_kib(self, kib: int) -> None:
        """Include a measurement in the peak."""
        self._seen_kib = max(self._seen_kib, kib)

    def take_advice(self) -> str:
        """A line for the log when the advised limit is exceeded for the first time; else empty."""
        if not 0 < self._advised_kib < self._seen_kib:
            return ""
        limit_mib, self._advised_kib = self._advised_kib >> 10, 0
        return memory_warning(self._seen_kib >> 10, limit_mib)

    def peak_kib(self) -> int:
        """The peak that the kernel counted against the limit; else the highest measurement."""
        counted = self._group.peak_kib() if self._group else None
        return counted or self._seen_kib

    def kernel_killed(self) -> bool:
        """Whether the kernel killed a process of the job at the limit."""
        return self._group is not None and self._group.out_of_memory()


def memory_warning(used_mib: int, limit_mib: int) -> str:
    """The line for the log of a job without --memory (the native shim has the same)."""
    return f"the job uses {used_mib} MiB of memory, more than the {limit_mib} MiB of a job without --memory"
