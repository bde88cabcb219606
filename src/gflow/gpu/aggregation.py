"""From looks to stretches of time: what is worth keeping of a reading a second. Pure: time is handed in."""

from __future__ import annotations

from collections.abc import Mapping

from gflow.gpu.port import Sample

# How old a job is -> how long a stretch of its history: fine at first, coarse later.
SPANS = ((60.0, 1), (1200.0, 10), (float("inf"), 60))
GPU_SPAN = 10


class Stretch:
    """Readings of one GPU, summed up."""

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
        self.slowed |= sample.slowed & ~1  # idle is no slowing down

    def row(self, span: int) -> tuple[int, int, int | None, int | None, int, int, int | None, int, int]:
        """As the store has it: in whole numbers, which take a quarter of the room."""
        count = self._count or 1
        busy = round(self._busy / self._readings) if self._readings else None
        return (
            self.at, span, busy, self.busy_most, self.memory_mib, round(self._power / count), self.heat,
            round(self._clock / count), self.slowed,
        )  # fmt: skip


class RunHistory:
    """One run on one GPU: its open stretch, and all of it."""

    def __init__(self, now: float) -> None:
        self.begun = now
        self.total = Stretch(now)
        self.open = Stretch(now)

    def add(self, sample: Sample, memory_mib: int, now: float) -> Stretch | None:
        """A reading; a stretch that is complete with it."""
        done = None
        if now - self.open.at >= self.span(now):
            done, self.open = self.open, Stretch(now)
        self.open.add(sample, memory_mib, now)
        self.total.add(sample, memory_mib, now)
        return done

    def span(self, now: float) -> int:
        return next(span for age, span in SPANS if now - self.begun < age)


Runs = Mapping[int, tuple[str, ...]]
