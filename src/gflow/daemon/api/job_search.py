"""Finding the jobs of a listing, as they all are at one moment, without holding up the loop.

Active jobs are in memory and change under our hands: they are copied a few at a time, and what
changed meanwhile is copied again before we are done. Jobs that are over come from the database,
which a reader sees as it was at one moment.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from gflow.core.forecast.explain import Blocker, explain
from gflow.core.ids import JobKey
from gflow.core.model import Moment
from gflow.core.queries.job_filter import Filter
from gflow.core.resources import Shape
from gflow.core.state.state import State
from gflow.daemon.context import Context
from gflow.daemon.loop.cooperative import SLICE, in_order, in_slices
from gflow.errors import Refused
from gflow.store.reader import Reader
from gflow.text.queue import Entry, sort_key

# Finished jobs shown unless somebody asks for more: there may be a million.
NEWEST = 1000
# Up to so many, a part of the queue is found by its keys; else all of it is copied, and cut.
SMALL_PART = 10 * SLICE
# What one listing holds in memory at most.
MOST = 200_000


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A listing as somebody wants it."""

    wanted: Filter
    # Whose turn it takes.
    uid: int = 0
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


async def find(context: Context, asked: Asked, now: Moment) -> Found:
    """The jobs that `asked` means."""
    return await (_past if asked.is_past else _present)(context, asked, now)


# ---------------------------------------------------------------- active jobs, from memory


async def _present(context: Context, asked: Asked, now: Moment) -> Found:
    if asked.sort == "id" and 0 < abs(asked.limit or 0) <= SMALL_PART:
        return await _part(context, asked)
    copies = await _copies(context, asked.wanted)
    total = len(copies)
    keys = deque(sorted(copies))
    entries = (copies.pop(keys.popleft()) for _ in range(total))
    return Found(await _window(entries, asked, now), total, False)


async def _part(context: Context, asked: Asked) -> Found:
    """A part of the queue by id: of all others only the keys are looked at."""
    loop = context.loop
    while True:
        state = loop.state
        with loop.track_changes() as changed:
            taking, keys = _Copies(state, asked.wanted), dict[JobKey, None]()
            async for some in in_slices(sorted(state.jobs)):
                taking.sift(some, keys)
            shown = _shown(sorted(keys), asked)
            missing = shown
            while state is loop.state and (missing or changed):
                again = [changed.pop() for _ in range(len(changed))]
                if again:
                    taking.sift(again, keys)
                    shown = _shown(sorted(keys), asked)
                    taking.forget({*again, *(taking.found.keys() - set(shown))})
                taking.take(list(islice((key for key in shown if key not in taking.found), SLICE)))
                missing = [key for key in shown if key not in taking.found]
                if missing:
                    await asyncio.sleep(0)
            if state is loop.state:  # else it was rebuilt from the disk meanwhile
                return Found((taking.found[key] for key in shown), len(keys), False)


def _shown(keys: list[JobKey], asked: Asked) -> list[JobKey]:
    """Of the keys in order, those in the part that is asked for."""
    if asked.is_reversed:
        keys.reverse()
    limit = asked.limit or 0
    if limit > 0:
        return keys[asked.offset : asked.offset + limit]
    end = max(0, len(keys) - asked.offset)
    return keys[max(0, end + limit) : end]


async def _copies(context: Context, wanted: Filter) -> dict[JobKey, Entry]:
    """The active jobs that are wanted, copied, all as they are when this returns."""
    loop = context.loop
    while True:
        state = loop.state
        with loop.track_changes() as changed:
            taking = _Copies(state, wanted)
            async for keys in in_slices(sorted(state.jobs)):
                taking.take(keys)
            while changed:
                taking.take([changed.pop() for _ in range(min(len(changed), SLICE))])
                if changed:
                    await asyncio.sleep(0)
            if state is loop.state:  # else it was rebuilt from the disk meanwhile
                return taking.found


class _Copies:
    """Copies of jobs, each with the reason why it waits."""

    def __init__(self, state: State, wanted: Filter) -> None:
        self.found: dict[JobKey, Entry] = {}
        self._state = state
        self._wanted = wanted
        self._reasons: dict[Shape, Blocker] = {}
        # Most listings want everything: a question less for each of a hundred thousand jobs.
        self._is_open = wanted == Filter()

    def take(self, keys: list[JobKey]) -> None:
        """Copy these jobs as they are now; forget those that are not wanted any more."""
        state, matches, is_open = self._state, self._wanted.matches, self._is_open
        found, reasons = self.found, self._reasons
        for key in keys:  # as `_is_wanted`, without a call for each
            job = state.jobs.get(key)
            if job is not None and ((is_open and job.progress is None) or matches(job)):
                found[key] = (copy.copy(job), explain(state, job, reasons))
            else:
                found.pop(key, None)

    def sift(self, keys: list[JobKey], into: dict[JobKey, None]) -> None:
        """Keep in `into` those of these keys whose jobs are wanted, and no others of them."""
        for key in keys:
            if self._is_wanted(key):
                into[key] = None
            else:
                into.pop(key, None)

    def forget(self, keys: Iterable[JobKey]) -> None:
        for key in keys:
            self.found.pop(key, None)

    def _is_wanted(self, key: JobKey) -> bool:
        job = self._state.jobs.get(key)
        return job is not None and ((self._is_open and job.progress is None) or self._wanted.matches(job))


# ---------------------------------------------------------------- all jobs, from the database


async def _past(context: Context, asked: Asked, now: Moment) -> Found:
    reader, total, rows = await context.threads.read(
        asked.uid, context.store.reader, lambda reader: _counted(reader, asked)
    )
    state, reasons = context.loop.state, dict[Shape, Blocker]()
    count = len(rows)
    jobs = (reader.job(rows.popleft()) for _ in range(count))
    entries = ((job, explain(state, job, reasons)) for job in jobs)
    if asked.sort == "id" and asked.limit is not None:
        return Found(entries, total, False)  # the database has done it all
    return Found(await _window(entries, asked, now), total, count < total)


def _counted(reader: Reader, asked: Asked) -> tuple[Reader, int, deque[Any]]:
    """How many jobs are meant, and the rows that are needed. Runs in a thread; jobs are made later."""
    total = reader.count(asked.wanted)
    return reader, total, deque(_rows(reader, asked, total))


def _rows(reader: Reader, asked: Asked, total: int) -> list[Any]:
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


async def _window(entries: Iterator[Entry], asked: Asked, now: Moment) -> Iterator[Entry]:
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
