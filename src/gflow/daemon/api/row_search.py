"""Listings with one row for each group, array and other job: pages of the queue, and of all jobs.

The queue is in memory: its rows are counted, and a page is any part of them. Of all jobs, which may be a
million, a page follows the one before it, so that its cost follows the jobs of its rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from gflow.core.forecast.explain import Blocker, explain
from gflow.core.ids import JobKey, job_key
from gflow.core.model import Job, JobState
from gflow.core.queries.group_summary import GroupTally, array_tally, count_states, summarise
from gflow.core.queries.job_filter import Filter
from gflow.core.resources import Shape
from gflow.core.state.state import State
from gflow.daemon.api.group_search import estimate
from gflow.daemon.api.job_search import ListingRequest, with_report
from gflow.daemon.api.visibility import Viewer
from gflow.daemon.context import Context
from gflow.daemon.loop import timers
from gflow.daemon.loop.cooperative import in_key_order
from gflow.daemon.loop.loop import Loop
from gflow.store import group_figures
from gflow.store.group_figures import Members
from gflow.store.reader import Reader
from gflow.store.row_walk import ListedRow, Place, walk_rows
from gflow.store.rows import SELECT
from gflow.text.group_row import group_id, group_name
from gflow.wire.answers.groups import GroupFigures, ListingRow, RowsAnswer, TaskState
from gflow.wire.answers.jobs import job_view
from gflow.wire.encoding import key_label, rfc3339

# Rows of a page, unless the request says otherwise.
ROWS = 100
# Groups with more jobs have no list of their states.
MOST_STATES = 60


class _Figures(NamedTuple):
    """What the database says about a row: its jobs in all states, and their states if they are few."""

    tally: GroupTally
    states: list[tuple[int, JobState]] | None


class _Page(NamedTuple):
    rows: list[ListedRow]
    # The job that stands for each row.
    jobs: dict[int, Job]
    figures: dict[int, _Figures]
    total: int | None
    after: Place | None
    matching: int


async def find_rows(context: Context, viewer: Viewer, listing: ListingRequest, after: str) -> RowsAnswer:
    """A page of rows. `after`: where the page before it stopped; empty: the first page."""
    place = Place.parse(after) if after else None
    page = await (_past_page(context, listing, place) if listing.is_past else _queue_page(context, listing))
    state, now, reasons = context.loop.state, timers.now(), dict[Shape, Blocker]()
    running = _running_by_group(state)
    rows = []
    for row in page.rows:
        job = page.jobs.get(row.first)
        if job is None:  # it ended meanwhile
            continue
        group = None
        if figures := page.figures.get(row.first):
            group = _group_view(state, viewer, job, figures, running.get(row.group, []))
        why = explain(state, job, now, reasons)
        rows.append(ListingRow(job=job_view(viewer.redact_job(job), viewer.redact_blocker(why)), group=group))
    return RowsAnswer(
        rows=rows, total=page.total, next=str(page.after) if page.after else None, jobs=page.matching
    )


# ---------------------------------------------------------------- the queue, from memory


class _Order(NamedTuple):
    """All rows of the queue with a filter, oldest first. A row of one job is the key of the job."""

    wanted: Filter
    version: int
    rows: list[JobKey | ListedRow]
    matching: int


# The latest order of each loop: it serves the next pages of a list until the queue changes.
_orders: WeakKeyDictionary[Loop, _Order] = WeakKeyDictionary()


async def _order_of(context: Context, wanted: Filter) -> _Order:
    loop = context.loop
    latest = _orders.get(loop)
    if latest is not None and latest.version == loop.version and latest.wanted == wanted:
        return latest
    state, version = loop.state, loop.version
    # Most jobs have no group, and an object for each of 100,000 takes time.
    rows: list[JobKey | ListedRow] = []
    groups: dict[int, ListedRow] = {}
    matching, is_unfiltered = 0, wanted == Filter()
    async for keys in in_key_order(state.jobs.order):
        for key in keys:
            job = state.jobs.get(key)
            if job is None or not ((is_unfiltered and job.progress is None) or wanted.matches(job)):
                continue
            matching += 1
            group = job.spec.group
            if not group:
                rows.append(key)
            elif (row := groups.get(group)) is not None:
                row.add(key)
            else:
                row = groups[group] = ListedRow(group, key)
                row.add(key)
                rows.append(row)
    _orders[loop] = _Order(wanted, version, rows, matching)
    return _orders[loop]


async def _queue_page(context: Context, listing: ListingRequest) -> _Page:
    order = await _order_of(context, listing.wanted)
    state, total = context.loop.state, len(order.rows)
    first, last = listing.offset, listing.offset + (listing.limit or ROWS)
    if listing.is_reversed:
        page = order.rows[max(0, total - last) : max(0, total - first)][::-1]
    else:
        page = order.rows[first:last]
    shown = [one if isinstance(one, ListedRow) else ListedRow(0, one) for one in page]
    jobs = {row.first: copy.copy(job) for row in shown if (job := state.jobs.get(JobKey(row.first)))}
    several = _groups_of(shown, jobs)
    figures = {}
    if several:
        figures = await context.threads.read(
            listing.uid, context.store.reader, lambda reader: _read_figures(reader, several, jobs)
        )
    return _Page(shown, jobs, figures, total, None, order.matching)


# ---------------------------------------------------------------- all jobs, from the database


async def _past_page(context: Context, listing: ListingRequest, place: Place | None) -> _Page:
    page = await context.threads.read(
        listing.uid, context.store.reader, lambda reader: _read_page(reader, listing, place)
    )
    jobs = {key: with_report(context.loop.state, job) for key, job in page.jobs.items()}
    return page._replace(jobs=jobs)


def _read_page(reader: Reader, listing: ListingRequest, place: Place | None) -> _Page:
    """A page as the database has it. Runs in a thread."""
    limit = listing.limit or ROWS
    rows, after = walk_rows(reader, listing.wanted, place, limit, newest=listing.is_reversed)
    keys = ", ".join(str(int(row.first)) for row in rows)
    jobs = {row[0]: reader.job(row) for row in reader.rows(f"{SELECT} WHERE key IN ({keys})")}
    figures = _read_figures(reader, _groups_of(rows, jobs), jobs)
    return _Page(rows, jobs, figures, None, after, reader.count(listing.wanted))


# ---------------------------------------------------------------- groups


def _groups_of(rows: Sequence[ListedRow], jobs: dict[int, Job]) -> list[ListedRow]:
    """The rows that are shown as a group: several jobs of one are listed, or the record of an array."""
    return [row for row in rows if row.group and row.first in jobs
            and (row.count > 1 or jobs[row.first].is_array)]  # fmt: skip


def _read_figures(reader: Reader, groups: Sequence[ListedRow], jobs: dict[int, Job]) -> dict[int, _Figures]:
    """The figures of these groups and arrays, by the key of the job that stands for each."""
    known = {row.group: max(row.first, row.last) for row in groups if row.group > 0}
    tallies = dict(group_figures.tally_groups(reader, known)) if known else {}
    found = {}
    for row in groups:
        if row.group > 0:
            tally = tallies.get(row.group, GroupTally())
            members = Members(row.group, job_key(row.group), tally.last)
        else:
            array = _array_of(reader, jobs[row.first])
            tally, members = array_tally(array), group_figures.tasks_of(array.key)
        total = count_states(tally.states).total
        states = group_figures.states_of_jobs(reader, members, MOST_STATES) if total <= MOST_STATES else None
        found[row.first] = _Figures(tally, states)
    return found


def _array_of(reader: Reader, job: Job) -> Job:
    """The record of the array of a task."""
    if job.is_array:
        return job
    return reader.job(reader.rows(f"{SELECT} WHERE key = {int(job_key(job.number))}")[0])


def _running_by_group(state: State) -> dict[int, list[Job]]:
    found: dict[int, list[Job]] = {}
    for job in state.running.values():
        if job.spec.group and not job.is_array:
            found.setdefault(job.spec.group, []).append(job)
    return found


def _group_view(
    state: State, viewer: Viewer, job: Job, figures: _Figures, running: Sequence[Job]
) -> GroupFigures:
    estimated_s = estimate(state, running[0].key) if running else None
    summary = summarise(figures.tally, running, timers.now(), estimated_s)
    shown = viewer.redact_job(job)
    id_ = group_id(shown)
    return GroupFigures(
        id=shown.number if id_.isdecimal() else id_,
        name=group_name(shown, has_one_name=True),
        total=summary.counts.total,
        counts=summary.counts,
        progress=round(summary.progress, 4),
        left_s=None if summary.left_s is None else round(summary.left_s, 1),
        started_at=rfc3339(summary.started_at),
        finished_at=rfc3339(summary.finished_at),
        jobs=None
        if figures.states is None
        else [TaskState(id=key_label(key), state=one.value) for key, one in figures.states],
    )
