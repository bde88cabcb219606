"""Groups and arrays as one thing: their figures for `gjob show`, and one line for each in a listing.

Counts of ended jobs come from the database, in a thread; expected ends and the latest reports from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from starlette.requests import Request

from gflow.core.ids import JobKey, job_key
from gflow.core.model import FINAL, Job, JobState, Moment
from gflow.core.queries.group_summary import (
    GroupSummary,
    GroupTally,
    array_tally,
    summarise,
    usual_length,
)
from gflow.core.queries.job_filter import Filter
from gflow.core.state.state import State
from gflow.daemon.api.job_search import Found, with_report
from gflow.daemon.api.request import no_group, while_connected
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.context import Context, context_of
from gflow.daemon.loop import timers
from gflow.daemon.loop.cooperative import in_slices
from gflow.job_states import WAITING
from gflow.store import group_figures
from gflow.store.group_figures import Members
from gflow.store.reader import Reader
from gflow.text.group_row import GroupLine
from gflow.text.queue import Entry, metric_value, no_such_value

# Failed jobs that the details of a group name.
MOST_FAILED = 10


class GroupDetails(NamedTuple):
    """A group or array with its figures, as the viewer may see it."""

    # Where its jobs are.
    members: Members
    first: Job
    last: Job
    summary: GroupSummary
    # The jobs with the best and the worst value of the metric; the worst is None if one job reported it.
    best: Job | None
    worst: Job | None
    failed: list[Job]
    # The parameters that differ between the jobs, with their values.
    parameters: dict[str, list[str]]


class _Rows(NamedTuple):
    """The jobs of a group that its details need, as the database has them."""

    members: Members
    tally: GroupTally
    first: Job
    last: Job
    last_waiting: Job | None
    running: list[Job]
    extremes: list[Job]
    # Metrics that jobs reported; empty: they reported the wanted one.
    metrics: set[str]
    failed: list[Job]
    parameters: dict[str, list[str]]


# ---------------------------------------------------------------- the details of one group


async def find_group(request: Request, group: int, metric: str, *, is_highest_best: bool) -> GroupDetails:
    """The details of a group. Raises NotFound if there is none that the caller may see."""
    context, viewer = context_of(request), viewer_of(request)

    def read(reader: Reader) -> _Rows | None:
        members = group_figures.members_of(reader, group)
        return None if members is None else _read_rows(reader, members, metric)

    work = context.threads.read(viewer.uid, context.store.reader, read)
    rows = await while_connected(request, work)
    if rows is None or not viewer.sees_job(rows.first):
        raise no_group(group)
    return await _details(request, rows, metric, is_highest_best=is_highest_best)


async def find_tasks(request: Request, array: Job, metric: str, *, is_highest_best: bool) -> GroupDetails:
    """The details of the tasks of an array that the caller may see."""
    context, viewer = context_of(request), viewer_of(request)

    def read(reader: Reader) -> _Rows:
        return _read_rows(reader, group_figures.tasks_of(array.key), metric, array)

    rows = await while_connected(request, context.threads.read(viewer.uid, context.store.reader, read))
    return await _details(request, rows, metric, is_highest_best=is_highest_best)


def _read_rows(reader: Reader, members: Members, metric: str, array: Job | None = None) -> _Rows:
    ends = f"key IN ({members.first}, {members.last})"
    extremes = group_figures.extreme_jobs(reader, members, metric)
    first_and_last = [array] if array is not None else group_figures.jobs_of(reader, members, ends)
    return _Rows(
        members=members,
        tally=group_figures.tally(reader, members) if array is None else array_tally(array),
        first=first_and_last[0],
        last=first_and_last[-1],
        last_waiting=group_figures.last_waiting(reader, members) if array is None else array,
        running=group_figures.running_jobs(reader, members),
        extremes=extremes,
        metrics=set() if extremes else group_figures.reported_metrics(reader, members),
        failed=group_figures.failed_jobs(reader, members, MOST_FAILED),
        parameters=group_figures.varied_parameters(reader, members),
    )


async def _details(request: Request, rows: _Rows, metric: str, *, is_highest_best: bool) -> GroupDetails:
    viewer, state = viewer_of(request), context_of(request).loop.state
    running = [with_report(state, job) for job in rows.running]
    sees_all = viewer.sees_details(rows.first)
    ranked = _rank_jobs([*rows.extremes, *running], metric) if sees_all else []
    if not ranked and sees_all:
        _check_metric(
            metric, rows.metrics.union(*(job.progress_report.names for job in running if job.progress_report))
        )
    best, worst = (ranked[0], ranked[-1]) if ranked else (None, None)
    if is_highest_best:
        best, worst = worst, best
    return GroupDetails(
        members=rows.members,
        first=viewer.redact_job(rows.first),
        last=viewer.redact_job(rows.last),
        summary=await _summarise(request, rows, running),
        best=best,
        worst=worst if len(ranked) > 1 else None,
        failed=[viewer.redact_job(job) for job in rows.failed],
        parameters=rows.parameters if sees_all else {},
    )


def _check_metric(metric: str, reported: set[str]) -> None:
    """Refuse a metric that no job reported, if jobs reported others. `loss` is the default."""
    if reported and metric not in (*reported, "loss"):
        raise no_such_value("metric", metric, reported)


def _rank_jobs(jobs: Sequence[Job], metric: str) -> list[Job]:
    """The different jobs that reported a metric, the lowest value first."""
    values = {
        job.key: (value, job.key, job) for job in jobs if (value := metric_value(job, metric)) is not None
    }
    return [job for _, _, job in sorted(values.values(), key=lambda one: one[:2])]


async def _summarise(request: Request, rows: _Rows, running: Sequence[Job]) -> GroupSummary:
    """The figures. If no job of the group runs, its end follows from the expected start of its last job."""
    context, now = context_of(request), timers.now()
    state, waiting = context.loop.state, rows.last_waiting
    known = running[0] if running else waiting
    estimated_s = estimate(state, known.key) if known is not None else None
    summary = summarise(rows.tally, running, now, estimated_s)
    length_s = usual_length(rows.tally, running, now, estimated_s)
    job = state.jobs.get(waiting.key) if waiting is not None else None
    if running or length_s is None or summary.counts.held or job is None or job not in state.ready:
        return summary
    work = context.forecasts.forecast_for(viewer_of(request).uid, job)
    forecast = await while_connected(request, work)
    start = forecast.start() if forecast is not None else None
    if start is None:
        return summary
    return msgspec.structs.replace(summary, left_s=max(0.0, start.expected - now.boot) + length_s)


def estimate(state: State, key: JobKey) -> float | None:
    """The engine's estimate of a job's run time, or its limit; None: it rests on no run of such a job."""
    waits = state.ready.where.get(key)
    batch = waits.batch if waits is not None else state.running.batches.get(key)
    job = state.jobs.get(key)
    if batch is None or job is None or not (batch.is_known or job.spec.time_limit_s):
        return None
    return state.runtime_estimates.length(job.spec.time_limit_s, batch)


# ---------------------------------------------------------------- one line in a listing


class _Listed:
    """The listed jobs of one group or array, summed up as they are added."""

    def __init__(self, entry: Entry) -> None:
        self.first = entry
        self.group = entry[0].spec.group
        self.last_name, self.last_key = "", JobKey(0)
        self.first_waiting: Entry | None = None
        self.running: list[Job] = []
        self.count = 0
        # Sums over the jobs that are not final.
        self.active = GroupTally()

    def add(self, entry: Entry) -> None:
        job, state = entry[0], entry[0].state
        self.count += 1
        self.last_name, self.last_key = job.name, max(self.last_key, job.key)
        if state is JobState.RUNNING and not job.is_array:
            self.running.append(job)
        elif state in WAITING and self.first_waiting is None:
            self.first_waiting = entry
        if state not in FINAL:
            self.active.states[state] = self.active.states.get(state, 0) + 1
            if job.started_at is not None:
                self.active.started_at = min(self.active.started_at or job.started_at, job.started_at)

    def line(self, state: State, tally: GroupTally, now: Moment) -> tuple[Entry, GroupLine]:
        """The line of the group, and its entry: one that tells why the group waits, if no job of it runs."""
        running = self.running
        estimated_s = estimate(state, running[0].key) if running else None
        summary = summarise(tally, running, now, estimated_s)
        entry = self.first if running or self.first_waiting is None else self.first_waiting
        return entry, GroupLine(self.group, summary, has_one_name=self.first[0].name == self.last_name)


async def collapse(
    context: Context, viewer: Viewer, found: Found, wanted: Filter, now: Moment
) -> tuple[Found, dict[JobKey, GroupLine]]:
    """The listing with one entry for each group or array of which it has several jobs, and their lines.

    A line belongs to the entry with its key.
    """
    ended_by = timers.now().wall
    rows: list[Entry | _Listed] = []
    groups: dict[int, _Listed] = {}
    async for entries in in_slices(found.entries):
        for entry in entries:
            group = entry[0].spec.group
            listed = groups.get(group) if group else None
            if group and listed is None:
                listed = groups[group] = _Listed(entry)
                rows.append(listed)
            if listed is None:
                rows.append(entry)
            else:
                listed.add(entry)
    several = [one for one in groups.values() if one.count > 1]
    # Without such filters, the listing has all active jobs of each group.
    has_active = not (wanted.states or wanted.names or wanted.targets or wanted.partitions or wanted.spans)
    tallies = await _tally(context, viewer, several, ended_by if has_active else None)
    made = {one.group: one.line(context.loop.state, tallies[one.group], now) for one in several}
    shown = (
        row if not isinstance(row, _Listed) else made[row.group][0] if row.group in made else row.first
        for row in rows
    )
    return found._replace(entries=shown), {entry[0].key: line for entry, line in made.values()}


async def _tally(
    context: Context, viewer: Viewer, groups: Sequence[_Listed], ended_by: float | None
) -> dict[int, GroupTally]:
    """The sums of these groups and arrays.

    `ended_by`: the listing has all of their jobs that were active then (wall clock); None: some are missing.
    """
    tallies = {one.group: GroupTally() for one in groups}
    known = {one.group: one.last_key for one in groups if one.group > 0}
    if known:
        tallies |= await context.threads.read(
            viewer.uid,
            context.store.reader,
            lambda reader: dict(group_figures.tally_groups(reader, known, ended_by=ended_by)),
        )
    for one in groups:
        array = context.job(job_key(-one.group)) if one.group < 0 else None
        if array is not None and array.is_array:
            tallies[one.group] = array_tally(array)
        elif ended_by is not None:
            tallies[one.group].add(one.active)
    return tallies
