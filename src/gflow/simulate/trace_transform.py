"""Making a trace fit a question: another load, another pool, limits where it has none. All seeded."""

from __future__ import annotations

from random import Random

from gflow.errors import Refused
from gflow.simulate.trace import Entry

MINUTE, HOUR, DAY = 60, 3600, 86400
# Time limits as people write them.
USUAL_LIMITS = (
    10 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY,
    5 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 60 * DAY,
)  # fmt: skip


def pool_for(entries: list[Entry], load: float) -> int:
    """How many GPUs give this offered load; never fewer than the widest job needs."""
    return max(max(entry.gpus for entry in entries), round(work(entries) / span(entries) / load), 1)


def work(entries: list[Entry]) -> float:
    """GPU-seconds."""
    return sum(entry.gpus * entry.duration for entry in entries)


def span(entries: list[Entry]) -> float:
    """Seconds from the first submission to the last."""
    return max(1.0, max(e.submit for e in entries) - min(e.submit for e in entries))


def fitted(entries: list[Entry], pool: int, load: float, random: Random) -> list[Entry]:
    """Only what fits on the pool, and of that as much as gives the load: a random part of the
    stream, or all of it in less time."""
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


def jittered(entries: list[Entry], most_s: float, random: Random) -> list[Entry]:
    """Every submission up to this much earlier or later."""
    return sorted(entry._replace(submit=entry.submit + random.uniform(-most_s, most_s)) for entry in entries)


def limited(entries: list[Entry], random: Random) -> list[Entry]:
    """A time limit for every job that has none: run time times 1.1 to 5, rounded up to a usual value."""
    return [entry if entry.limit else entry._replace(limit=_limit(entry, random)) for entry in entries]


def _limit(entry: Entry, random: Random) -> int:
    wanted = entry.duration * random.uniform(1.1, 5)
    return next((limit for limit in USUAL_LIMITS if limit >= wanted), int(wanted) + 1)


def exact(entries: list[Entry]) -> list[Entry]:
    """As if everybody knew how long their jobs run."""
    return [entry._replace(limit=-1) for entry in entries]
