"""Long work of the loop's own thread in short pieces, so that nobody waits for the end of it."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

# How much is done between two looks at what else there is: half a millisecond for a table.
SLICE = 200
RUN = 1000
# The same of what takes longer each: a job is read, or written as JSON.
FEW = 50


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[list[T]]:
    """All items, a few at a time; others have their turn in between."""
    iterator = iter(items)
    while piece := list(islice(iterator, size)):
        yield piece
        if len(piece) == size:
            await asyncio.sleep(0)


async def in_order(items: Iterable[T], key: Callable[[T], Any], *, reverse: bool = False) -> Iterator[T]:
    """The items sorted: short runs now, which are merged while they are read."""
    iterator = iter(items)
    runs: list[list[T]] = []
    while run := list(islice(iterator, RUN)):
        runs.append(sorted(run, key=key, reverse=reverse))
        await asyncio.sleep(0)
    queues = [consumed(runs.pop()) for _ in range(len(runs))]
    return heapq.merge(*queues, key=key, reverse=reverse)


def consumed(items: Iterable[T]) -> Iterator[T]:
    """The items, each let go as it is read: to free a hundred thousand at once takes tens of milliseconds."""
    queue = deque(items)
    while queue:
        yield queue.popleft()
