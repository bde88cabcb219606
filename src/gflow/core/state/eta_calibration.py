"""ETA calibration: what earlier forecasts became, which scales the next ones.

From time to time a job that begins to wait is sampled, with its worst-case wait
(`core.forecast.queue_simulation`). When the job starts, actual_wait / worst_case_wait is recorded. The 50th
and 86th percentiles of recent ratios scale the next job's worst case. Jobs that still wait count as censored
observations with their wait so far: otherwise only the jobs that were lucky would count.

There is no calibrated earliest start: a job may start at once, because a running job may end at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest

import msgspec

from gflow.core.ids import JobKey

# The key of the record in the database's meta table.
ETA_CALIBRATION = "foretold"
# The quantile of the latest start. The forecast claims 0.8: the margin covers changes from month to month.
PART = 0.86
# Samples that are kept of each sort (with limits, without); and the weight of the prior in samples, which
# falls to 0 as outcomes are recorded here.
MOST_CASES, KNOWN_FOR = 200, 100.0
# Use local outcomes once there are LEARNT_FROM of them. Below FEW, take the later of the local-only and the
# blended quantile, in case limits here are tighter than in the prior.
LEARNT_FROM, FEW = 5, 20
# Resolution of forecasts in seconds: if all jobs have limits, and if not. Added to both waits of a ratio.
FINE_S, COARSE_S = 60.0, 600.0
# The prior: ratios of wait to worst case, measured on one pool of the Philly trace (103959), at 15 quantiles.
WITH_LIMITS = (
    0.01, 0.029, 0.046, 0.058, 0.079, 0.103, 0.131, 0.165, 0.189, 0.213, 0.233, 0.263, 0.29, 0.357, 0.535,
)  # fmt: skip
WITHOUT_LIMITS = (
    0.024, 0.043, 0.073, 0.1, 0.146, 0.198, 0.251, 0.328, 0.412, 0.562, 0.796, 1.103, 1.656, 2.103, 7.462,
)  # fmt: skip

# A ratio, its weight, and whether it is an outcome; if not, it is censored: the outcome will be larger.
Weighed = tuple[float, float, bool]


class EtaSample(msgspec.Struct, array_like=True):
    """A forecast for a waiting job: its time, the worst-case wait, and whether all jobs had time limits."""

    told_at: float
    worst_s: float
    is_bounded: bool


class EtaOutcome(msgspec.Struct, array_like=True):
    """The outcome of a sample: `part` is actual_wait / worst_case_wait."""

    told_at: float
    part: float
    is_bounded: bool


class Record(msgspec.Struct, omit_defaults=True):
    """The stored form: samples of waiting jobs, and outcomes. Records of another format are discarded."""

    open: dict[JobKey, EtaSample] = {}
    over: list[EtaOutcome] = []


class EtaCalibration:
    """Samples and outcomes of earlier forecasts."""

    def __init__(self) -> None:
        self.record = Record()
        # Whether the record differs from the stored one.
        self.is_changed = False

    def wants(self, key: JobKey) -> bool:
        """Whether this job has no sample yet."""
        return key not in self.record.open

    def add_sample(self, key: JobKey, sample: EtaSample) -> None:
        """Record a sample for a job that begins to wait."""
        self.record.open[key] = sample
        self._forget(sample.is_bounded)
        self.is_changed = True

    def _forget(self, is_bounded: bool) -> None:
        """Keep the latest MOST_CASES samples, started or not. If only outcomes were dropped, jobs that wait
        long would gain weight over time.
        """
        record = self.record
        times = [one.told_at for one in record.open.values() if one.is_bounded == is_bounded]
        times += [one.told_at for one in record.over if one.is_bounded == is_bounded]
        if len(times) <= MOST_CASES:
            return
        since = nlargest(MOST_CASES, times)[-1]
        record.open = {
            key: one
            for key, one in record.open.items()
            if one.is_bounded != is_bounded or one.told_at >= since
        }
        record.over = [one for one in record.over if one.is_bounded != is_bounded or one.told_at >= since]

    def started(self, key: JobKey, now: float) -> None:
        """Record the outcome of a job that starts, if it has a sample."""
        sample = self.record.open.pop(key, None)
        if sample is not None:
            part = round(part_of(now - sample.told_at, sample), 4)
            self.record.over.append(EtaOutcome(sample.told_at, part, sample.is_bounded))
            self.is_changed = True

    def keep_only(self, keys: Iterable[JobKey]) -> None:
        """Drop the samples of all other jobs, which left the queue without a start."""
        before = self.record.open
        self.record.open = {key: before[key] for key in keys}
        self.is_changed |= len(before) != len(self.record.open)

    def is_learnt(self, is_bounded: bool) -> bool:
        """Whether there are enough local outcomes to use them."""
        return len(self._outcomes(is_bounded)) >= LEARNT_FROM

    def parts(self, is_bounded: bool, now: float) -> tuple[float, float]:
        """The median and the late quantile (PART) of actual_wait / worst_case_wait."""
        middle, late = quantiles(self._observations(is_bounded, now), (0.5, PART))
        own = self._outcomes(is_bounded)
        if 0 < len(own) < FEW:
            local = quantiles(((part, 1.0, True) for part in own), (0.5, PART))
            return max(middle, local[0]), max(late, local[1])
        return middle, late

    def _observations(self, is_bounded: bool, now: float) -> Iterator[Weighed]:
        """The prior, the outcomes, and the censored samples as of now, with weights."""
        prior, own = WITH_LIMITS if is_bounded else WITHOUT_LIMITS, self._outcomes(is_bounded)
        weight = KNOWN_FOR * (1 - len(own) / MOST_CASES) / len(prior)
        for part in prior:
            yield part, weight, True
        for part in own:
            yield part, 1.0, True
        for sample in self.record.open.values():
            if sample.is_bounded == is_bounded:
                yield part_of(now - sample.told_at, sample), 1.0, False

    def _outcomes(self, is_bounded: bool) -> list[float]:
        return [one.part for one in self.record.over if one.is_bounded == is_bounded]

    # ------------------------------------------------------------ storing

    def text(self) -> str:
        self.is_changed = False
        return msgspec.json.encode(self.record).decode()

    def load(self, text: str) -> None:
        """Load a stored record."""
        self.record = msgspec.json.decode(text, type=Record)


def part_of(wait: float, sample: EtaSample) -> float:
    """The ratio of this wait to the worst case of a sample."""
    resolution = _resolution(sample.is_bounded)
    return (max(0.0, wait) + resolution) / (sample.worst_s + resolution)


def wait_of(part: float, worst_s: float, is_bounded: bool) -> float:
    """The wait in seconds that is this part of the worst case; the inverse of `part_of`."""
    resolution = _resolution(is_bounded)
    return max(0.0, part * (worst_s + resolution) - resolution)


def _resolution(is_bounded: bool) -> float:
    return FINE_S if is_bounded else COARSE_S


def quantiles(observations: Iterable[Weighed], wanted: Iterable[float]) -> list[float]:
    """Kaplan-Meier estimates of these quantiles, which must be in rising order."""
    ordered = sorted(observations)
    left, alive = sum(weight for _, weight, _ in ordered), 1.0
    found: list[float] = []
    todo = list(wanted)
    for value, weight, is_outcome in ordered:
        if is_outcome and left > 0:
            alive -= alive * weight / left
        while todo and 1.0 - alive >= todo[0] - 1e-9:
            found.append(value)
            del todo[0]
        left -= weight
    # A censored sample has waited longer than every outcome: extrapolate.
    return found + [1.5 * ordered[-1][0]] * len(todo)
