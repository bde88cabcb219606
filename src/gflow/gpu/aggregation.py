"""Aggregation of GPU samples into intervals for the history. Pure: the time is passed in."""

from __future__ import annotations

from collections.abc import Mapping

from gflow.gpu.port import Sample

# Age of a run -> length of an interval, in seconds: fine at first, coarse later.
SPANS = ((60.0, 1), (1200.0, 10), (float("inf"), 60))
GPU_SPAN = 10


class Stretch:
    """An interval: the aggregated samples of one GPU."""

    __slots__ = ("_busy", "_clock", "_count", "_power", "_readings", "at", "busy_most", "end", "heat",
                 "memory_mib", "slowed")  # fmt: skip

    def __init__(self, at: float) -> None:
        self.at = int(at)
        self.end = at
        self._count = 0
        self._readings = 0
        self._busy = self._power = self._clock = 0.0
        self.busy_most: int | None = None
        self.heat: int | None = None
        self.memory_mib = 0
        self.slowed = 0

    def add(self, sample: Sample, memory_mib: int, now: float) -> None:
        self.end = now
        self._count += 1
        if sample.utilisation is not None:
            self._readings += 1
            self._busy += sample.utilisation
            self.busy_most = max(self.busy_most or 0, sample.utilisation)
        self._power += sample.power_w or 0.0
        self._clock += sample.clock_mhz or 0
        if sample.temperature is not None:
            self.heat = max(self.heat or 0, sample.temperature)
        self.memory_mib = max(self.memory_mib, memory_mib)
        self.slowed |= sample.slowed & ~1  # bit 0 means idle, which is not a slowdown

    def row(self, span: int) -> tuple[int, int, int | None, int | None, int, int, int | None, int, int]:
        """The stored row: in integers, which take a quarter of the space."""
        count = self._count or 1
        busy = round(self._busy / self._readings) if self._readings else None
        return (
            self.at, span, busy, self.busy_most, self.memory_mib, round(self._power / count), self.heat,
            round(self._clock / count), self.slowed,
        )  # fmt: skip


class RunHistory:
    """The history of one run on one GPU: its current interval, and the total."""

    def __init__(self, now: float) -> None:
        self.begun = now
        self.total = Stretch(now)
        self.open = Stretch(now)

    def add(self, sample: Sample, memory_mib: int, now: float) -> Stretch | None:
        """Add a sample; the interval that it completes, if any."""
        done = None
        if now - self.open.at >= self.span(now):
            done, self.open = self.open, Stretch(now)
        self.open.add(sample, memory_mib, now)
        self.total.add(sample, memory_mib, now)
        return done

    def span(self, now: float) -> int:
        return next(span for age, span in SPANS if now - self.begun < age)


Runs = Mapping[int, tuple[str, ...]]
