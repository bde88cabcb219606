"""Search for the jobs of a listing: a consistent snapshot that does not block the loop.

Active jobs are in memory and may change during the search. They are copied in slices, and jobs that changed
meanwhile are copied again before the search returns. Final jobs come from the database, which a reader sees
as of one transaction.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from gflow.core.forecast.explain import Blocker, explain
from gflow.core.ids import JobKey
from gflow.core.key_table import KeyTable
from gflow.core.model import Job, Moment
from gflow.core.queries.job_filter import Filter
from gflow.core.resources import Shape
from gflow.core.state.sorted_keys import SortedKeys
from gflow.core.state.state import State
from gflow.daemon.context import Context
from gflow.daemon.loop.cooperative import SLICE, in_key_order, in_order, in_slices
from gflow.errors import Refused
from gflow.store.reader import Reader
from gflow.text.queue import ORDERS, Entry, no_such_value, sort_key, value_names

# Final jobs shown by default: there may be a million.
NEWEST = 1000
# Largest page that is selected by key before jobs are copied. Otherwise all jobs are copied, then cut.
SMALL_PART = 10 * SLICE
# Most jobs that one listing holds in memory.
MOST = 200_000


class ListingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A listing as the caller requested it."""

    wanted: Filter
    # The user whose database turn it takes.
    uid: int = 0
    # Whether final jobs are included.
    is_past: bool
    sort: str = "id"
    is_reversed: bool = False
    # Whether the caller sees the metrics of a job, which otherwise must not decide the order.
    sees_metrics: Callable[[Job], bool] = lambda job: True
    # N > 0: the first N; N < 0: the last -N; 0: all; None: all active jobs and the newest final ones.
    limit: int | None = None
    offset: int = 0


class Found(NamedTuple):
    """The jobs of a listing, as an iterator; their number without a limit; whether some were cut off."""

    entries: Iterator[Entry]
    total: int
    is_cut: bool


async def find(context: Context, listing: ListingRequest, now: Moment) -> Found:
    """Find the jobs of a listing."""
    if listing.is_past:
        return await _find_all(context, listing, now)
    return await _find_active(context, listing, now)


# ---------------------------------------------------------------- active jobs, from memory


async def _find_active(context: Context, listing: ListingRequest, now: Moment) -> Found:
    if listing.sort == "id" and 0 < abs(listing.limit or 0) <= SMALL_PART:
        if listing.offset + abs(listing.limit or 0) <= SLICE and listing.wanted == Filter():
            return _take_page(context, listing, now)
        return await _find_page(context, listing, now)
    copies = await _copy_jobs(context, listing.wanted, now)
    total, entries = len(copies), (entry for _, entry in copies.consumed())
    return Found(await _sort_and_cut(entries, listing, now), total, False)


def _take_page(context: Context, listing: ListingRequest, now: Moment) -> Found:
    """Take one end of the queue, ordered by id. The cost grows with the number of arrays, not of jobs."""
    state, limit = context.loop.state, listing.limit or 0
    jobs, is_from_end = state.jobs, (limit < 0) != listing.is_reversed
    keys = reversed(jobs.order) if is_from_end else jobs.order
    listed = (key for key in keys if jobs[key].is_listed)
    shown = list(islice(listed, listing.offset, listing.offset + abs(limit)))
    copies = _JobCopies(state, listing.wanted, now)
    copies.copy_jobs(shown)
    if limit < 0:
        shown.reverse()
    total = len(jobs) - sum(not jobs[key].is_listed for key in jobs.arrays)
    return Found((copies.found[key] for key in shown), total, False)


async def _find_page(context: Context, listing: ListingRequest, now: Moment) -> Found:
    """Find a page of the queue, ordered by id. Only the jobs of the page are copied."""
    loop = context.loop
    while True:
        state = loop.state
        with loop.track_changes() as changed:
            copies, keys = _JobCopies(state, listing.wanted, now), SortedKeys()
            async for some in in_key_order(state.jobs.order):
                copies.select(some, keys)
            shown = _page_of(keys, listing)
            missing = shown
            while state is loop.state and (missing or changed):
                changed_keys = [changed.pop() for _ in range(len(changed))]
                if changed_keys:
                    copies.select(changed_keys, keys)
                    shown = _page_of(keys, listing)
                    copies.forget({*changed_keys, *(set(copies.found) - set(shown))})
                copies.copy_jobs(list(islice((key for key in shown if key not in copies.found), SLICE)))
                missing = [key for key in shown if key not in copies.found]
                if missing:
                    await asyncio.sleep(0)
            if state is loop.state:  # else the state was reloaded from the database: start over
                return Found((copies.found[key] for key in shown), len(keys), False)


def _page_of(keys: SortedKeys, listing: ListingRequest) -> list[JobKey]:
    """The keys of the requested page."""
    count, limit = len(keys), listing.limit or 0
    start, end = listing.offset, min(count, listing.offset + limit)
    if limit <= 0:
        end = max(0, count - listing.offset)
        start = max(0, end + limit)
    if listing.is_reversed:
        return keys.slice(count - end, count - start)[::-1]
    return keys.slice(start, end)


async def _copy_jobs(context: Context, wanted: Filter, now: Moment) -> KeyTable[Entry]:
    """Copy the active jobs that match. All copies are current when this returns."""
    loop = context.loop
    while True:
        state = loop.state
        with loop.track_changes() as changed:
            copies = _JobCopies(state, wanted, now)
            async for keys in in_key_order(state.jobs.order):
                copies.copy_jobs(keys)
            while changed:
                copies.copy_jobs([changed.pop() for _ in range(min(len(changed), SLICE))])
                if changed:
                    await asyncio.sleep(0)
            if state is loop.state:  # else the state was reloaded from the database: start over
                return copies.found


class _JobCopies:
    """Copies of jobs, each with its blocker."""

    def __init__(self, state: State, wanted: Filter, now: Moment) -> None:
        self.found: KeyTable[Entry] = KeyTable()
        self._state, self._now = state, now
        self._wanted = wanted
        self._reasons: dict[Shape, Blocker] = {}
        # Most listings have no filter: this saves a call for each of 100,000 jobs.
        self._is_unfiltered = wanted == Filter()

    def copy_jobs(self, keys: list[JobKey]) -> None:
        """Copy the current state of these jobs; drop the copies of jobs that no longer match."""
        state, matches, is_unfiltered = self._state, self._wanted.matches, self._is_unfiltered
        found, reasons, now = self.found, self._reasons, self._now
        for key in keys:  # `_is_wanted`, inlined for speed
            job = state.jobs.get(key)
            if job is not None and ((is_unfiltered and job.progress is None) or matches(job)):
                found[key] = (copy.copy(job), explain(state, job, now, reasons))
            elif key in found:
                del found[key]

    def select(self, keys: list[JobKey], into: SortedKeys) -> None:
        """Update `into` for these keys: add those whose jobs match, remove the others."""
        for key in keys:
            is_wanted = self._is_wanted(key)
            if is_wanted != (key in into):
                (into.add if is_wanted else into.remove)(key)

    def forget(self, keys: Iterable[JobKey]) -> None:
        for key in keys:
            if key in self.found:
                del self.found[key]

    def _is_wanted(self, key: JobKey) -> bool:
        job = self._state.jobs.get(key)
        return job is not None and (
            (self._is_unfiltered and job.progress is None) or self._wanted.matches(job)
        )


# ---------------------------------------------------------------- all jobs, from the database


async def _find_all(context: Context, listing: ListingRequest, now: Moment) -> Found:
    reader, total, rows = await context.threads.read(
        listing.uid, context.store.reader, lambda reader: _count_and_read(reader, listing)
    )
    state, reasons = context.loop.state, dict[Shape, Blocker]()
    count = len(rows)
    jobs = (with_report(state, reader.job(rows.popleft())) for _ in range(count))
    entries = ((job, explain(state, job, now, reasons)) for job in jobs)
    if listing.sort == "id" and listing.limit is not None:
        return Found(entries, total, False)  # sorted and cut by the database
    return Found(await _sort_and_cut(entries, listing, now), total, count < total)


async def find_last_ended(context: Context, uid: int, wanted: Filter, most: int) -> list[Entry]:
    """Find the jobs that ended last, without their total number: to count them costs the whole history."""
    reader, rows = await context.threads.read(
        uid, context.store.reader, lambda reader: (reader, reader.last_ended(wanted, most))
    )
    return [(reader.job(row), None) for row in rows]


def with_report(state: State, job: Job) -> Job:
    """A job with its last progress report. The database gets a report with the next change of the job."""
    current = state.jobs.get(job.key)
    if current is not None and current.attempt == job.attempt:
        job.progress_report = current.progress_report
    return job


def _count_and_read(reader: Reader, listing: ListingRequest) -> tuple[Reader, int, deque[Any]]:
    """Count the matching jobs and read the needed rows. Runs in a thread; rows become jobs later."""
    total = reader.count(listing.wanted)
    return reader, total, deque(_read_rows(reader, listing, total))


def _read_rows(reader: Reader, listing: ListingRequest, total: int) -> list[Any]:
    if listing.limit is None:
        if total > MOST:  # to read a million jobs takes 15 s, and to free them again holds the loop
            _check_size(reader.count_active(listing.wanted))
        return reader.recent(listing.wanted, NEWEST)
    if listing.sort != "id":
        _check_size(total)
        return reader.page(listing.wanted, -1, 0, newest=False)
    count = abs(listing.limit) or total
    _check_size(min(count, total - listing.offset))
    rows = reader.page(
        listing.wanted, count, listing.offset, newest=(listing.limit < 0) != listing.is_reversed
    )
    return rows[::-1] if listing.is_reversed else rows


def _check_size(count: int) -> None:
    if count > MOST:
        raise Refused(
            f"{count:,} jobs match, and one listing holds at most {MOST:,}",
            hint="look at a part of them: --limit and --offset, --since, --states",
        )


# ---------------------------------------------------------------- order and limit


async def _sort_and_cut(entries: Iterator[Entry], listing: ListingRequest, now: Moment) -> Iterator[Entry]:
    """Sort and cut the entries, which come ordered by id."""
    limit = listing.limit or 0
    from_end = limit < 0
    if listing.sort != "id" or listing.is_reversed or from_end:
        # The last N are the first N in reverse order.
        key = sort_key(listing.sort, now, is_reversed=listing.is_reversed, sees_metrics=listing.sees_metrics)
        known = set[str]()
        if listing.sort not in ORDERS:
            entries = _noting_names(entries, listing.sees_metrics, known)
        entries = await in_order(entries, key, reverse=listing.is_reversed != from_end)
        if known and listing.sort not in known:
            raise no_such_value("metric or parameter", listing.sort, known)
    async for _ in in_slices(islice(entries, listing.offset)):
        pass
    if not from_end:
        return islice(entries, limit or None)
    last: list[Entry] = []
    async for piece in in_slices(islice(entries, -limit)):
        last += piece
    return reversed(last)


def _noting_names(
    entries: Iterator[Entry], sees_metrics: Callable[[Job], bool], known: set[str]
) -> Iterator[Entry]:
    """Yield the entries; add the orders that sort any of them to `known`."""
    for entry in entries:
        known.update(value_names(entry[0]) if sees_metrics(entry[0]) else (), () if known else ORDERS)
        yield entry
