"""Who holds GPUs and does not use them, and for how long. Pure: time is handed in.

The clock is one that nobody sets and that stands still while the machine sleeps. What nobody could see
(a driver that hangs, a lost card) counts as use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gflow.gpu.census import Report

# A GPU that is busy less than this (percent) does nothing.
BUSY = 1
# Looks come every few seconds at most; a longer silence is one in which anything may have happened.
SILENCE_S = 30.0


class Unused(NamedTuple):
    """For how long a run has not used a GPU, and whether no process of it is there."""

    seconds: float
    is_bare: bool


class Idling:
    """When each run used each of its GPUs last."""

    def __init__(self) -> None:
        self._used_at: dict[tuple[str, int], float] = {}
        self._bare: set[tuple[str, int]] = set()
        self._looked_at: float | None = None

    def see(self, report: Report, holders: Mapping[int, tuple[str, ...]], now: float) -> None:
        """A look. `holders`: GPU -> the runs that have it."""
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

    def unused(self, now: float) -> dict[str, dict[int, Unused]]:
        """Run -> GPU -> for how long it has done nothing there."""
        found: dict[str, dict[int, Unused]] = {}
        for (run, index), at in self._used_at.items():
            found.setdefault(run, {})[index] = Unused(now - at, (run, index) in self._bare)
        return found


def is_used(report: Report, index: int, run: str, *, alone: bool) -> bool:
    """Whether a run does something on a GPU that it has, as far as anybody can tell."""
    busy = report.cards[index].sample.utilisation
    there = _is_there(report, index, run) or index in report.unclear
    if busy is None:  # a slice has no meter: whoever is there may be busy
        return there
    return busy >= BUSY and (there or (alone and index not in report.strangers))


def _is_there(report: Report, index: int, run: str) -> bool:
    return index in report.used.get(run, {})
