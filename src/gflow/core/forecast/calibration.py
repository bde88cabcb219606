"""How right earlier forecasts were, and so what the next one is told.

Now and then a job that begins to wait is noted, with how long it would wait at worst
(`core.forecast.queue_simulation`). When it starts, its wait is a part of that. By which part most of the
latest have started is what the next is told, and by which part half of them have. Those who still wait
count too, as far as they have come: else only the lucky would be heard. Nothing is learnt from what has not
happened yet.

There is no earliest start to be learnt: whoever is lucky starts at once, because what runs may end any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest

import msgspec

from gflow.core.ids import JobKey

# The name under which this is kept.
FORETOLD = "foretold"
# By when so many have started: the latest that is told. Eight in ten are promised, and the next month is
# never quite like the last.
PART = 0.86
# How many cases are remembered of each sort; and for how many stands what is known beforehand, which counts
# for less and less as cases come out here.
MOST_CASES, KNOWN_FOR = 200, 100.0
# From so many outcomes on they are gone by; and as long as they are few, what they say alone counts if it is
# later than what they say together with what is known beforehand: limits may be tight here.
LEARNT_FROM, FEW = 5, 20
# Below this a forecast is not right to the second: with limits on everything, and without.
FINE_S, COARSE_S = 60.0, 600.0
# Waits as parts of the worst, on one of Philly's pools (103959) alone: a fifteenth of the jobs each.
WITH_LIMITS = (
    0.01, 0.029, 0.046, 0.058, 0.079, 0.103, 0.131, 0.165, 0.189, 0.213, 0.233, 0.263, 0.29, 0.357, 0.535,
)  # fmt: skip
WITHOUT_LIMITS = (
    0.024, 0.043, 0.073, 0.1, 0.146, 0.198, 0.251, 0.328, 0.412, 0.562, 0.796, 1.103, 1.656, 2.103, 7.462,
)  # fmt: skip

# Where something is, its weight, and whether it is there for good or will come out anywhere beyond.
Weighed = tuple[float, float, bool]


class EtaSample(msgspec.Struct, array_like=True):
    """A job that was told something: when, how long it would wait at worst, whether limits alone say so."""

    told_at: float
    worst_s: float
    is_bounded: bool


class EtaOutcome(msgspec.Struct, array_like=True):
    """What became of a case: which part of the worst wait it was."""

    told_at: float
    part: float
    is_bounded: bool


class Record(msgspec.Struct, omit_defaults=True):
    """What is kept of it: those who wait, and those who started. (Records of another make start anew.)"""

    open: dict[JobKey, EtaSample] = {}
    over: list[EtaOutcome] = []


class EtaCalibration:
    """What became of earlier forecasts."""

    def __init__(self) -> None:
        self.record = Record()
        # Whether that is not what was kept last.
        self.is_changed = False

    def wants(self, key: JobKey) -> bool:
        """Whether there is anything to learn from this one."""
        return key not in self.record.open

    def tell(self, key: JobKey, case: EtaSample) -> None:
        """This job begins to wait."""
        self.record.open[key] = case
        self._forget(case.is_bounded)
        self.is_changed = True

    def _forget(self, is_bounded: bool) -> None:
        """Only who was told lately counts, whether it has started since or not. If those who started were
        dropped and those who wait were not, who waits for long would count for more and more."""
        record = self.record
        told = [one.told_at for one in record.open.values() if one.is_bounded == is_bounded]
        told += [one.told_at for one in record.over if one.is_bounded == is_bounded]
        if len(told) <= MOST_CASES:
            return
        since = nlargest(MOST_CASES, told)[-1]
        record.open = {
            key: one
            for key, one in record.open.items()
            if one.is_bounded != is_bounded or one.told_at >= since
        }
        record.over = [one for one in record.over if one.is_bounded != is_bounded or one.told_at >= since]

    def started(self, key: JobKey, now: float) -> None:
        """A job starts, of which something may have been told."""
        case = self.record.open.pop(key, None)
        if case is not None:
            part = round(part_of(now - case.told_at, case), 4)
            self.record.over.append(EtaOutcome(case.told_at, part, case.is_bounded))
            self.is_changed = True

    def keep_only(self, keys: Iterable[JobKey]) -> None:
        """The others do not wait any more, and have not started."""
        before = self.record.open
        self.record.open = {key: before[key] for key in keys}
        self.is_changed |= len(before) != len(self.record.open)

    def is_learnt(self, is_bounded: bool) -> bool:
        """Whether enough has been seen here to say more than what is known beforehand."""
        return len(self._outcomes(is_bounded)) >= LEARNT_FROM

    def parts(self, is_bounded: bool, now: float) -> tuple[float, float]:
        """Which part of the worst wait half of all wait at most, and nearly all."""
        middle, late = quantiles(self._cases(is_bounded, now), (0.5, PART))
        own = self._outcomes(is_bounded)
        if 0 < len(own) < FEW:
            alone = quantiles(((part, 1.0, True) for part in own), (0.5, PART))
            return max(middle, alone[0]), max(late, alone[1])
        return middle, late

    def _cases(self, is_bounded: bool, now: float) -> Iterator[Weighed]:
        """All that is known by now."""
        known, own = WITH_LIMITS if is_bounded else WITHOUT_LIMITS, self._outcomes(is_bounded)
        weight = KNOWN_FOR * (1 - len(own) / MOST_CASES) / len(known)
        for part in known:
            yield part, weight, True
        for part in own:
            yield part, 1.0, True
        for case in self.record.open.values():
            if case.is_bounded == is_bounded:
                yield part_of(now - case.told_at, case), 1.0, False

    def _outcomes(self, is_bounded: bool) -> list[float]:
        return [one.part for one in self.record.over if one.is_bounded == is_bounded]

    # ------------------------------------------------------------ keeping

    def text(self) -> str:
        self.is_changed = False
        return msgspec.json.encode(self.record).decode()

    def recall(self, text: str) -> None:
        """Go on from what was kept."""
        self.record = msgspec.json.decode(text, type=Record)


def part_of(wait: float, case: EtaSample) -> float:
    """Which part of the worst wait this is."""
    grain = _grain(case.is_bounded)
    return (max(0.0, wait) + grain) / (case.worst_s + grain)


def wait_of(part: float, worst_s: float, is_bounded: bool) -> float:
    """How long that is."""
    grain = _grain(is_bounded)
    return max(0.0, part * (worst_s + grain) - grain)


def _grain(is_bounded: bool) -> float:
    return FINE_S if is_bounded else COARSE_S


def quantiles(cases: Iterable[Weighed], wanted: Iterable[float]) -> list[float]:
    """Up to where each of these parts of all has got, in rising order (Kaplan and Meier's estimate)."""
    line = sorted(cases)
    left, alive = sum(weight for _, weight, _ in line), 1.0
    found: list[float] = []
    todo = list(wanted)
    for place, weight, is_there in line:
        if is_there and left > 0:
            alive -= alive * weight / left
        while todo and 1.0 - alive >= todo[0] - 1e-9:
            found.append(place)
            del todo[0]
        left -= weight
    # Somebody has waited longer than anybody who started.
    return found + [1.5 * line[-1][0]] * len(todo)
