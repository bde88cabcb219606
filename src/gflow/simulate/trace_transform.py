"""Transform a trace: fit it to a pool and a load, jitter submissions, add time limits. Seeded."""

from __future__ import annotations

from random import Random

from gflow.errors import Refused
from gflow.simulate.trace import Entry

MINUTE, HOUR, DAY = 60, 3600, 86400
# Round values that users choose as time limits, in seconds.
USUAL_LIMITS = (
    10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY,
    5 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 60 * DAY,
)  # fmt: skip


def pool_for(entries: list[Entry], load: float) -> int:
    """Number of GPUs for this offered load; at least as many as the widest job needs."""
    return max(max(entry.gpus for entry in entries), round(work(entries) / span(entries) / load), 1)


def work(entries: list[Entry]) -> float:
    """Total work, in GPU seconds."""
    return sum(entry.gpus * entry.duration for entry in entries)


def span(entries: list[Entry]) -> float:
    """Seconds from the first submission to the last."""
    return max(1.0, max(e.submit for e in entries) - min(e.submit for e in entries))


def fit_to_pool(entries: list[Entry], pool: int, load: float, random: Random) -> list[Entry]:
    """Keep the jobs that fit on the pool, and scale them to the offered load.

    A load above the wanted one is reduced to a random sample; one below it is compressed in time. 0: as it
    is.
    """
    possible = [entry for entry in entries if entry.gpus <= pool]
    if not possible:
        raise Refused(f"no job of this trace fits on {pool} GPUs")
    if not load:
        return possible
    share = load * pool * span(possible) / work(possible)
    if share >= 1:
        first = min(entry.submit for entry in possible)
        return [entry._replace(submit=first + (entry.submit - first) / share) for entry in possible]
    return [entry for entry in possible if random.random() < share] or possible[:1]


def jitter(entries: list[Entry], most_s: float, random: Random) -> list[Entry]:
    """Move every submission by up to `most_s` seconds, earlier or later."""
    return sorted(entry._replace(submit=entry.submit + random.uniform(-most_s, most_s)) for entry in entries)


def add_limits(entries: list[Entry], random: Random) -> list[Entry]:
    """Add a time limit to every job without one: 1.1 to 5 times its run time, rounded up to a usual value."""
    return [entry if entry.limit else entry._replace(limit=_limit(entry, random)) for entry in entries]


def _limit(entry: Entry, random: Random) -> int:
    wanted = entry.duration * random.uniform(1.1, 5)
    return next((limit for limit in USUAL_LIMITS if limit >= wanted), int(wanted) + 1)
