"""Idle GPUs: which runs hold GPUs without using them, and for how long. Pure: the time is passed in.

The clock is monotonic and stops during suspend. Time without samples (a driver that hangs, a lost card)
counts as use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gflow.gpu.census import Report

# A GPU with a utilisation below this (percent) is idle.
BUSY = 1
# Samples come every few seconds at most. After a longer gap, anything may have happened in it.
SILENCE_S = 30.0


class IdleTime(NamedTuple):
    """How long a run has not used a GPU, and whether none of its processes is on it."""

    seconds: float
    is_bare: bool


class IdleTracker:
    """The last time at which each run used each of its GPUs."""

    def __init__(self) -> None:
        self._used_at: dict[tuple[str, int], float] = {}
        self._bare: set[tuple[str, int]] = set()
        self._looked_at: float | None = None

    def see(self, report: Report, holders: Mapping[int, tuple[str, ...]], now: float) -> None:
        """Add a report of the census. `holders`: GPU -> the runs that have it."""
        before = self._looked_at
        blind = before is None or now - before > SILENCE_S
        self._looked_at = now
        self._bare = set()
        used_at = {}
        for index, runs in holders.items():
            for run in runs:
                name = run, index
                used = blind or index not in report.cards or is_used(report, index, run, alone=len(runs) == 1)
                used_at[name] = now if used else self._used_at.get(name, now)
                if not _is_there(report, index, run) and index not in report.unclear:
                    self._bare.add(name)
        self._used_at = used_at

    def idle_times(self, now: float) -> dict[str, dict[int, IdleTime]]:
        """Run -> GPU -> how long the run has not used it."""
        found: dict[str, dict[int, IdleTime]] = {}
        for (run, index), at in self._used_at.items():
            found.setdefault(run, {})[index] = IdleTime(now - at, (run, index) in self._bare)
        return found


def is_used(report: Report, index: int, run: str, *, alone: bool) -> bool:
    """Whether a run uses a GPU that it has, as far as the report can tell."""
    busy = report.cards[index].sample.utilisation
    there = _is_there(report, index, run) or index in report.unclear
    if busy is None:  # a MIG slice reports no utilisation: a process on it may be busy
        return there
    return busy >= BUSY and (there or (alone and index not in report.unmanaged))


def _is_there(report: Report, index: int, run: str) -> bool:
    return index in report.used.get(run, {})
