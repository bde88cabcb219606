"""Division of an epoch's samples among the ranks, and the weight of each batch. Pure.

An optimizer step takes the next `effective` samples of the epoch's order. They are cut into rounds of `batch`
samples per rank; the last round of a step and the last step of an epoch divide the remaining samples evenly.
A batch is weighted by its number of samples, so the gradient is the mean over the step's samples. The number
of ranks, the batch size and remainders do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Share(NamedTuple):
    """One batch of one rank: the samples [first, last) of the epoch's order.

    The mean loss of the batch is multiplied by `weight`; gradients are averaged over ranks. A rank without
    samples in a round gets one sample with weight 0, because it must take part in the all-reduce.
    """

    first: int
    last: int
    weight: float
    # After this batch the samples [0, done) of the epoch are used.
    done: int
    ends_step: bool
    # The batch was used before: this rank has no more, but others have.
    is_repeated: bool = False


def shares(
    samples: int,
    batch: int,
    effective: int,
    world: int = 1,
    rank: int = 0,
    start: int = 0,
    drop: bool = False,
) -> Iterator[Share]:
    """Yield the batches of one rank from sample `start` of an epoch. `drop`: skip an incomplete last step."""
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
