"""What replays were like, as a picture: how long jobs waited, and how many GPUs were in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from gflow import pictures
from gflow.simulate.replay import Ran

# How many points a curve has at most.
POINTS = 2000
N = TypeVar("N", int, float)


def plot(replays: Mapping[str, Sequence[Ran]], pool: int, path: Path) -> None:
    """Two pictures in one file, a curve for each policy in both."""
    drawn = pictures.figure(9, 8)
    waits, use = drawn.subplots(2, 1)
    for name, ran in replays.items():
        waits.plot(*zip(*longer_than(ran), strict=True), label=name)
        use.step(*zip(*in_use(ran), strict=True), where="post", label=name, linewidth=0.8)
    waits.set(xscale="log", yscale="log", xlabel="wait (hours)", ylabel="part of the jobs that waited longer")
    use.set(xlabel="days since the first submission", ylabel=f"GPUs in use, of {pool}", ylim=(0, pool * 1.02))
    for one in (waits, use):
        one.grid(alpha=0.3)
        one.legend()
    pictures.save(drawn, str(path))


def longer_than(ran: Sequence[Ran]) -> list[tuple[float, float]]:
    """(hours, part of the jobs that waited longer), a minute at least: a logarithm knows no zero."""
    waits = sorted(max(1 / 60, (one.start - one.entry.submit) / 3600) for one in ran)
    return thinned([(wait, 1 - place / len(waits)) for place, wait in enumerate(waits)])


def in_use(ran: Sequence[Ran]) -> list[tuple[float, int]]:
    """(days, GPUs in use from then on)."""
    first = min(one.entry.submit for one in ran)
    changes = sorted(change for one in ran for change in _changes(one, first))
    found, used = [(0.0, 0)], 0
    for at, more in changes:
        used += more
        found.append((at, used))
    return thinned(found)


def _changes(one: Ran, first: float) -> Iterator[tuple[float, int]]:
    start = (one.start - first) / 86400
    yield start, one.entry.gpus
    yield start + one.entry.duration / 86400, -one.entry.gpus


def thinned(points: list[tuple[float, N]]) -> list[tuple[float, N]]:
    """So many that nobody sees a difference; the last is among them."""
    every = -(-len(points) // POINTS)
    found = points[::every]
    return found if (len(points) - 1) % every == 0 else found + points[-1:]
