"""Finding the jobs of a listing, as they all are at one moment, without holding up the loop.

Active jobs are in memory and change under our hands: they are copied a few at a time, and what
changed meanwhile is copied again before we are done. Jobs that are over come from the database,
which a reader sees as it was at one moment.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from gflow.core.explain import Why, explain
from gflow.core.filter import Filter
from gflow.core.ids import JobKey
from gflow.core.needs import Shape
from gflow.core.state import State
from gflow.daemon.context import Context
from gflow.daemon.slices import SLICE, in_order, in_slices
from gflow.errors import Refused
from gflow.store.reading import Reader
from gflow.text.queue import Entry, sort_key

# Finished jobs shown unless somebody asks for more: there may be a million.
NEWEST = 1000
# Those that are listed by id and number up to so many are not copied with all others.
FEW = 1000
# What one listing holds in memory at most.
MOST = 200_000


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A listing as somebody wants it."""

    wanted: Filter
    # Whether jobs that are over are wanted too.
    is_past: bool
    sort: str = "id"
    is_reversed: bool = False
    # N > 0: the first N, N < 0: the last, 0: all; None: all that is active, and the newest of the past.
    limit: int | None = None
    offset: int = 0


class Found(NamedTuple):
    """The jobs of a listing, to be read once; how many there are without a limit; whether all are here."""

    entries: Iterator[Entry]
    total: int
    is_cut: bool


async def find(context: Context, asked: Asked, now: float) -> Found:
    """The jobs that `asked` means."""
    return await (_past if asked.is_past else _present)(context, asked, now)


# ---------------------------------------------------------------- active jobs, from memory


async def _present(context: Context, asked: Asked, now: float) -> Found:
    last = asked.offset + (asked.limit or 0)
    if asked.sort == "id" and not asked.is_reversed and asked.limit and asked.offset < last <= FEW:
        return await _first(context, asked, last)
    copies = (await _copies(context, asked.wanted)).found
    total = len(copies)
    keys = deque(sorted(copies))
    entries = (copies.pop(keys.popleft()) for _ in range(total))
    return Found(await _window(entries, asked, now), total, False)


async def _first(context: Context, asked: Asked, last: int) -> Found:
    """The first few: only those are copied."""
    taking = await _copies(context, asked.wanted, is_counting=True)
    total, keys = len(taking.wanted_keys), heapq.nsmallest(last, taking.wanted_keys)[asked.offset :]
    taking.copy(keys)
    return Found(iter([taking.found[key] for key in keys]), total, False)


async def _copies(context: Context, wanted: Filter, *, is_counting: bool = False) -> _Copies:
    """The active jobs that are wanted, copied (or only counted), all as they are when this returns."""
    loop = context.loop
    while True:
        state = loop.state
        with loop.noticing() as changed:
            taking = _Copies(state, wanted, is_counting=is_counting)
            async for keys in in_slices(list(state.jobs)):
                taking.take(keys)
            while changed:
                taking.take([changed.pop() for _ in range(min(len(changed), SLICE))])
                if changed:
                    await asyncio.sleep(0)
            if state is loop.state:  # else it was rebuilt from the disk meanwhile
                return taking


class _Copies:
    """Copies of jobs, each with the reason why it waits."""

    def __init__(self, state: State, wanted: Filter, *, is_counting: bool = False) -> None:
        self.found: dict[JobKey, Entry] = {}
        # Which are wanted, where they are only counted.
        self.wanted_keys: set[JobKey] = set()
        self._is_counting = is_counting
        self._state = state
        self._wanted = wanted
        self._reasons: dict[Shape, Why] = {}
        # Most listings want everything: a question less for each of a hundred thousand jobs.
        self._is_open = wanted == Filter()

    def take(self, keys: list[JobKey]) -> None:
        """Copy these jobs as they are now; forget those that are not wanted any more."""
        state, matches, is_open = self._state, self._wanted.matches, self._is_open
        for key in keys:
            job = state.jobs.get(key)
            if job is None or not ((is_open and job.progress is None) or matches(job)):
                self.found.pop(key, None)
                self.wanted_keys.discard(key)
            elif self._is_counting:
                self.wanted_keys.add(key)
            else:
                self.copy([key])

    def copy(self, keys: Iterable[JobKey]) -> None:
        """Copy these jobs, which are there."""
        for key in keys:
            job = self._state.jobs[key]
            self.found[key] = (copy.copy(job), explain(self._state, job, self._reasons))


# ---------------------------------------------------------------- all jobs, from the database


async def _past(context: Context, asked: Asked, now: float) -> Found:
    reader = context.store.reader()
    try:
        total = await asyncio.to_thread(reader.count, asked.wanted)
        rows = deque(await asyncio.to_thread(_rows, reader, asked, total))
    finally:
        reader.close()
    state, reasons = context.loop.state, dict[Shape, Why]()
    count = len(rows)
    jobs = (reader.job(rows.popleft()) for _ in range(count))
    entries = ((job, explain(state, job, reasons)) for job in jobs)
    if asked.sort == "id" and asked.limit is not None:
        return Found(entries, total, False)  # the database has done it all
    return Found(await _window(entries, asked, now), total, count < total)


def _rows(reader: Reader, asked: Asked, total: int) -> list[Any]:
    """The rows that are needed. Runs in a thread."""
    if asked.limit is None:
        rows = reader.recent(asked.wanted, NEWEST)
        _check(len(rows))
        return rows
    if asked.sort != "id":
        _check(total)
        return reader.page(asked.wanted, -1, 0, newest=False)
    count = abs(asked.limit) or total
    _check(min(count, total - asked.offset))
    rows = reader.page(asked.wanted, count, asked.offset, newest=(asked.limit < 0) != asked.is_reversed)
    return rows[::-1] if asked.is_reversed else rows


def _check(count: int) -> None:
    if count > MOST:
        raise Refused(
            f"that is {count:,} jobs, and one listing holds {MOST:,} at most",
            hint="look at a part of them: --limit and --offset, --since, --states",
        )


# ---------------------------------------------------------------- order and limit


async def _window(entries: Iterator[Entry], asked: Asked, now: float) -> Iterator[Entry]:
    """The entries, which come by id, in the order and number that is wanted."""
    limit = asked.limit or 0
    from_end = limit < 0
    if asked.sort != "id" or asked.is_reversed or from_end:
        # The last ones are the first of the other direction.
        entries = await in_order(entries, sort_key(asked.sort, now), reverse=asked.is_reversed != from_end)
    async for _ in in_slices(islice(entries, asked.offset)):
        pass
    if not from_end:
        return islice(entries, limit or None)
    last: list[Entry] = []
    async for piece in in_slices(islice(entries, -limit)):
        last += piece
    return reversed(last)
