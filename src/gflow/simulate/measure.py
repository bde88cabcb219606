"""What a replay was like for people and for the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gflow.simulate.replay import Ran

# A job's slowdown is bounded: what runs for seconds may wait for some.
SHORT_S = 10.0


def measure(ran: Sequence[Ran], pool: int, wide: int) -> dict[str, Any]:
    """All figures of one replay. Times are seconds."""
    waits = [one.start - one.entry.submit for one in ran]
    slowdowns = [_slowdown(one) for one in ran]
    first = min(one.entry.submit for one in ran)
    makespan = max(one.start + one.entry.duration for one in ran) - first
    work = sum(one.entry.gpus * one.entry.duration for one in ran)
    wides = [one.start - one.entry.submit for one in ran if one.entry.gpus >= wide]
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
        "wide": {
            "min_gpus": wide,
            "jobs": len(wides),
            "mean_wait_s": _mean(wides),
            "p95_wait_s": quantile(wides, 0.95),
            "p99_wait_s": quantile(wides, 0.99),
            "max_wait_s": max(wides, default=0.0),
        },
    }


def _slowdown(one: Ran) -> float:
    wait, length = one.start - one.entry.submit, one.entry.duration
    return max(1.0, (wait + length) / max(length, SHORT_S))


def fairness(ran: Sequence[Ran]) -> float:
    """Jain's index over the users' mean slowdowns: 1 when all fare alike, 1/users when one bears it all."""
    of_user: dict[str, list[float]] = {}
    for one in ran:
        of_user.setdefault(one.entry.user, []).append(_slowdown(one))
    means = [_mean(slowdowns) for slowdowns in of_user.values()]
    return sum(means) ** 2 / (len(means) * sum(mean * mean for mean in means))


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least this part of all does not exceed; 0 for none."""
    if not values:
        return 0.0
    rank = -(-part * len(values) // 1)
    return sorted(values)[max(0, int(rank) - 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
