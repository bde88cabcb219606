"""Metrics of a replay (waits, slowdown, utilisation, fairness), and plots of waits and GPU use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gflow import plotting
from gflow.simulate.replay import ReplayedJob

# Bounded slowdown: run times below this count as this, in seconds.
SHORT_S = 10.0


def measure(ran: Sequence[ReplayedJob], pool: int, wide: int) -> dict[str, Any]:
    """Compute all metrics of one replay. Times are seconds; `wide`: GPUs from which a job counts as wide."""
    waits = [one.wait_s for one in ran]
    slowdowns = [_slowdown(one) for one in ran]
    first = min(one.entry.submit for one in ran)
    makespan = max(one.end for one in ran) - first
    work = sum(one.entry.gpus * one.entry.duration for one in ran)
    wides = [one.wait_s for one in ran if one.entry.gpus >= wide]
    return {
        "jobs": len(ran),
        "makespan_s": makespan,
        "mean_wait_s": _mean(waits),
        "median_wait_s": quantile(waits, 0.5),
        "p95_wait_s": quantile(waits, 0.95),
        "p99_wait_s": quantile(waits, 0.99),
        "max_wait_s": max(waits),
        "mean_slowdown": _mean(slowdowns),
        "utilisation": work / (pool * makespan) if makespan else 0.0,
        "fairness": fairness(ran),
        "preemptions": sum(len(one.preempted) for one in ran),
        # Work that preempted jobs did again.
        "lost_gpu_s": sum(one.entry.gpus * _lost_s(one) for one in ran if one.preempted),
        "wide": {
            "min_gpus": wide,
            "jobs": len(wides),
            "mean_wait_s": _mean(wides),
            "p95_wait_s": quantile(wides, 0.95),
            "p99_wait_s": quantile(wides, 0.99),
            "max_wait_s": max(wides, default=0.0),
        },
    }


def _slowdown(one: ReplayedJob) -> float:
    """Bounded slowdown: (wait + run time) / run time, at least 1."""
    length = one.entry.duration
    return max(1.0, (one.wait_s + length) / max(length, SHORT_S))


def _lost_s(one: ReplayedJob) -> float:
    """How much longer a job ran than it had to, to the millisecond."""
    return round(sum(end - start for start, end in one.runs) - one.entry.duration, 3)


def fairness(ran: Sequence[ReplayedJob]) -> float:
    """Jain's index over the users' mean slowdowns: 1 if all are equal, 1/users if one user has it all."""
    of_user: dict[str, list[float]] = {}
    for one in ran:
        of_user.setdefault(one.entry.user, []).append(_slowdown(one))
    means = [_mean(slowdowns) for slowdowns in of_user.values()]
    return sum(means) ** 2 / (len(means) * sum(mean * mean for mean in means))


def quantile(values: Sequence[float], part: float) -> float:
    """The nearest-rank quantile: the smallest value that at least this part does not exceed; 0 if empty."""
    if not values:
        return 0.0
    rank = -(-part * len(values) // 1)
    return sorted(values)[max(0, int(rank) - 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# Maximum number of points of a curve.
POINTS = 2000
N = TypeVar("N", int, float)


def plot(replays: Mapping[str, Sequence[ReplayedJob]], pool: int, path: Path) -> None:
    """Plot waits and GPU use into one file, with one curve per policy in each plot."""
    drawn = plotting.figure(9, 8)
    waits, use = drawn.subplots(2, 1)
    for name, ran in replays.items():
        waits.plot(*zip(*wait_distribution(ran), strict=True), label=name)
        use.step(*zip(*gpus_in_use(ran), strict=True), where="post", label=name, linewidth=0.8)
    waits.set(xscale="log", yscale="log", xlabel="wait (hours)", ylabel="part of the jobs that waited longer")
    use.set(xlabel="days since the first submission", ylabel=f"GPUs in use, of {pool}", ylim=(0, pool * 1.02))
    for axes in (waits, use):
        axes.grid(alpha=0.3)
        axes.legend()
    plotting.save(drawn, str(path))


def wait_distribution(ran: Sequence[ReplayedJob]) -> list[tuple[float, float]]:
    """Points (hours, part of the jobs that waited longer). Waits are at least a minute, for the log axis."""
    waits = sorted(max(1 / 60, one.wait_s / 3600) for one in ran)
    return thin_out([(wait, 1 - rank / len(waits)) for rank, wait in enumerate(waits)])


def gpus_in_use(ran: Sequence[ReplayedJob]) -> list[tuple[float, int]]:
    """Points (days, GPUs in use from then on)."""
    first = min(one.entry.submit for one in ran)
    changes = sorted(change for one in ran for change in _changes(one, first))
    points, used = [(0.0, 0)], 0
    for at, more in changes:
        used += more
        points.append((at, used))
    return thin_out(points)


def _changes(one: ReplayedJob, first: float) -> Iterator[tuple[float, int]]:
    """The starts and the ends of a job: (days, change of GPUs in use)."""
    for start, end in one.runs:
        yield (start - first) / 86400, one.entry.gpus
        yield (end - first) / 86400, -one.entry.gpus


def thin_out(points: list[tuple[float, N]]) -> list[tuple[float, N]]:
    """Keep at most about POINTS evenly spaced points, always including the last."""
    every = -(-len(points) // POINTS)
    found = points[::every]
    return found if (len(points) - 1) % every == 0 else found + points[-1:]
