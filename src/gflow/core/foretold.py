"""How right earlier forecasts were, and so how wide the next one has to be.

Now and then a job that begins to wait is noted, with how long it would wait at worst (`core.playing`). When
it starts, its wait is a part of that. The shortest span that holds most of these parts is what the next is
told. Those who still wait count too, as far as they have come: else only the lucky would be heard. Nothing is
learnt from what has not happened yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, chain

import msgspec

from gflow.core.ids import JobKey

# The name under which this is kept.
FORETOLD = "foretold"
# Which part of the starts an interval is to hold. Eight in ten are promised, and the next month is never
# quite like the last.
PART = 0.85
# How many cases are remembered of each sort, and for how many cases stands what is known beforehand.
MOST_CASES, KNOWN_FOR = 400, 30.0
# Below this a forecast is not right to the second: with limits on everything, and without.
FINE_S, COARSE_S = 60.0, 600.0
# Waits as parts of the worst, on one of Philly's pools (103959) alone: a fifteenth of the jobs each.
WITH_LIMITS = (
    0.007, 0.023, 0.042, 0.062, 0.076, 0.098, 0.125, 0.154, 0.185, 0.212, 0.231, 0.26, 0.289, 0.379, 0.753,
)  # fmt: skip
WITHOUT_LIMITS = (
    0.018, 0.05, 0.079, 0.101, 0.132, 0.173, 0.204, 0.253, 0.283, 0.355, 0.567, 0.875, 1.354, 2.416, 5.896,
)  # fmt: skip


class Case(msgspec.Struct, array_like=True):
    """A job that was told something: when, how long it would wait at worst, whether limits alone say so."""

    told_at: float
    worst_s: float
    is_bounded: bool


class Record(msgspec.Struct, omit_defaults=True):
    """What is kept of it: those who wait, and the parts of those who started, with and without limits."""

    open: dict[JobKey, Case] = {}
    bounded: list[float] = []
    unbounded: list[float] = []


class Foretold:
    """What became of earlier forecasts."""

    def __init__(self) -> None:
        self.record = Record()
        # Whether that is not what was kept last.
        self.is_changed = False

    def wants(self, key: JobKey) -> bool:
        """Whether there is anything to learn from this one, and room for it."""
        return key not in self.record.open and len(self.record.open) < MOST_CASES

    def tell(self, key: JobKey, case: Case) -> None:
        """This job begins to wait."""
        self.record.open[key] = case
        self.is_changed = True

    def started(self, key: JobKey, wall: float) -> None:
        """A job starts, of which something may have been told."""
        case = self.record.open.pop(key, None)
        if case is not None:
            parts = self._parts(case.is_bounded)
            parts.append(round(part_of(wall - case.told_at, case), 4))
            del parts[:-MOST_CASES]
            self.is_changed = True

    def keep_only(self, keys: Iterable[JobKey]) -> None:
        """The others do not wait any more, and have not started."""
        before = self.record.open
        self.record.open = {key: before[key] for key in keys}
        self.is_changed |= len(before) != len(self.record.open)

    def span(self, is_bounded: bool, wall: float) -> tuple[float, float]:
        """Between which parts of the worst wait most jobs start, as far as is known by now."""
        known = WITH_LIMITS if is_bounded else WITHOUT_LIMITS
        still = (case for case in self.record.open.values() if case.is_bounded == is_bounded)
        return shortest_span(
            chain(
                ((part, KNOWN_FOR / len(known), True) for part in known),
                ((part, 1.0, True) for part in self._parts(is_bounded)),
                ((part_of(wall - case.told_at, case), 1.0, False) for case in still),
            )
        )

    def interval(self, worst_s: float, is_bounded: bool, wall: float) -> tuple[float, float]:
        """Between which waits a job starts that waits so long at worst."""
        grain = _grain(is_bounded)
        low, high = self.span(is_bounded, wall)
        return max(0.0, low * (worst_s + grain) - grain), max(0.0, high * (worst_s + grain) - grain)

    def _parts(self, is_bounded: bool) -> list[float]:
        return self.record.bounded if is_bounded else self.record.unbounded

    # ------------------------------------------------------------ keeping

    def text(self) -> str:
        self.is_changed = False
        return msgspec.json.encode(self.record).decode()

    def recall(self, text: str) -> None:
        """Go on from what was kept."""
        self.record = msgspec.json.decode(text, type=Record)


def part_of(wait: float, case: Case) -> float:
    """Which part of the worst wait this is."""
    grain = _grain(case.is_bounded)
    return (max(0.0, wait) + grain) / (case.worst_s + grain)


def _grain(is_bounded: bool) -> float:
    return FINE_S if is_bounded else COARSE_S


def shortest_span(cases: Iterable[tuple[float, float, bool]]) -> tuple[float, float]:
    """The shortest span that holds `PART` of all. Each case: where it is, its weight, whether it has got
    there or will come out anywhere beyond (Kaplan and Meier's estimate)."""
    line = sorted(cases)
    left, alive = sum(weight for _, weight, _ in line), 1.0
    places, masses = [], []
    for place, weight, is_there in line:
        if is_there and left > 0:
            mass = alive * weight / left
            places.append(place)
            masses.append(mass)
            alive -= mass
        left -= weight
    if alive > 1e-9:  # somebody has waited longer than anybody who started
        places.append(1.5 * line[-1][0])
        masses.append(alive)
    sums = [0.0, *accumulate(masses)]
    best, end = (places[0], places[-1]), 0
    for begin in range(len(places)):
        while end < len(places) and sums[end + 1] - sums[begin] < PART - 1e-9:
            end += 1
        if end == len(places):
            break
        if places[end] - places[begin] < best[1] - best[0]:
            best = places[begin], places[end]
    return best
