"""Who gets which samples of an epoch, and how much each batch counts. Pure.

An optimizer step takes the next `effective` samples of the epoch, in the order that was drawn for it. They
are cut into rounds of `batch` samples for each rank; the last round of a step, and the last step of an epoch,
have as many as are left, shared out evenly. A batch counts by its samples, so gradients are the mean over the
step's samples whatever the cuts were: more ranks, smaller batches or a remainder change who computes, not
what.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Share(NamedTuple):
    """One batch of one rank: the samples [first, last) of the epoch's order.

    `weight` is what the mean loss of this batch is multiplied with; gradients are averaged over ranks. A rank
    for which nothing was left gets one sample that counts nothing: it has to take part.
    """

    first: int
    last: int
    weight: float
    # The samples [0, done) of the epoch are used once this batch is.
    done: int
    ends_step: bool


def shares(
    samples: int,
    batch: int,
    effective: int,
    world: int = 1,
    rank: int = 0,
    start: int = 0,
    drop: bool = False,
) -> Iterator[Share]:
    """The batches of one rank from sample `start` of an epoch on. `drop`: no step that is not full."""
    for begin in range(start, samples, effective):
        end = min(begin + effective, samples)
        if drop and end - begin < effective:
            return
        for first in range(begin, end, batch * world):
            last = min(first + batch * world, end)
            yield _share(first, last, begin, end, world, rank)


def _share(first: int, last: int, begin: int, end: int, world: int, rank: int) -> Share:
    count = last - first
    mine, next_one = first + rank * count // world, first + (rank + 1) * count // world
    weight = (next_one - mine) * world / (end - begin)
    return (
        Share(mine, next_one, weight, last, last == end)
        if weight
        else Share(first, first + 1, 0.0, last, last == end)
    )
