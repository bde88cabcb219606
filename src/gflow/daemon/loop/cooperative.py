"""Long work in the loop's thread, cut into slices so that other tasks run in between."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from gflow.core.ids import JobKey
from gflow.core.state.sorted_keys import SortedKeys

T = TypeVar("T")

# Items between two yields to the event loop: half a millisecond for rows of a table.
SLICE = 200
# Items per slice where each takes a fraction of a microsecond.
MANY = 10_000
# Items in one sorted run of `in_order`.
RUN = 1000
# Items per slice where each takes longer: a job is read from the database, or encoded as JSON.
FEW = 50


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[list[T]]:
    """Yield the items in lists of `size`; other tasks run in between."""
    iterator = iter(items)
    while piece := list(islice(iterator, size)):
        yield piece
        if len(piece) == size:
            await asyncio.sleep(0)


async def in_key_order(order: SortedKeys) -> AsyncIterator[list[JobKey]]:
    """Yield the keys in order, in lists of `SLICE`; other tasks run in between, and may change the set."""
    last = JobKey(0)
    while piece := order.after(last, SLICE):
        last = piece[-1]
        yield piece
        if len(piece) < SLICE:
            return
        await asyncio.sleep(0)


async def in_order(items: Iterable[T], key: Callable[[T], Any], *, reverse: bool = False) -> Iterator[T]:
    """Merge sort: sort short runs now, and merge them while the result is read."""
    iterator = iter(items)
    runs: list[list[T]] = []
    while run := list(islice(iterator, RUN)):
        runs.append(sorted(run, key=key, reverse=reverse))
        await asyncio.sleep(0)
    queues = [consumed(runs.pop()) for _ in range(len(runs))]
    return heapq.merge(*queues, key=key, reverse=reverse)


def consumed(items: Iterable[T]) -> Iterator[T]:
    """Yield the items and free each as it is read: freeing 100,000 at once takes tens of milliseconds."""
    queue = deque(items)
    while queue:
        yield queue.popleft()
