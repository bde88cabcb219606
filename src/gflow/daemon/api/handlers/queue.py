"""The route that lists jobs: filter, order, limit, output format."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.forecast.wait_report import why_never
from gflow.core.ids import JobKey
from gflow.core.model import FINAL, LOCAL, JobState, Moment
from gflow.core.queries.job_filter import EVERY_USER, Filter
from gflow.core.state.state import State
from gflow.daemon.api.group_search import collapse
from gflow.daemon.api.job_search import Found, ListingRequest, find
from gflow.daemon.api.request import (
    caller,
    context_of,
    parse_number,
    query_of,
    spans_of,
    split_list,
    states_of,
    while_connected,
)
from gflow.daemon.api.response import FORMS, ListingStyle, TurnResponse, answer, wants_text
from gflow.daemon.api.result_forms import RESULT_FORMS
from gflow.daemon.api.row_search import find_rows
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.context import Context
from gflow.daemon.loop import timers
from gflow.errors import UsageError, unknown
from gflow.job_states import FAILED_NAMES
from gflow.options.times import parse_since
from gflow.store.samples import usage_of_jobs
from gflow.text.queue import (
    DEFAULT,
    SAMPLED,
    SHARED,
    GpuUse,
    columns_of,
    nothing_active,
    sort_of,
    totals_line,
    with_progress,
)
from gflow.wire.answers.job_details import ExpectedStart, StartsAnswer
from gflow.wire.encoding import encode, key_label, rfc3339
from gflow.wire.queries import JobsQuery, StartsQuery

log = logging.getLogger("gflow.api")
# Answers above this size (characters) are streamed.
LARGE = 1 << 18
# Jobs that a terminal shows of all those that have ended, unless --limit says otherwise.
LATEST = 20
# Most rows of a page.
MOST_ROWS = 500
ALL_FORMS = FORMS | RESULT_FORMS
_FAILED = frozenset(map(JobState, FAILED_NAMES))


async def list_jobs(request: Request) -> Response:
    """List active jobs, or all jobs, with filters."""
    query = query_of(request, JobsQuery)
    form = query.form or ("table" if wants_text(request) else "json")
    if form == "rows":
        return await _list_rows(request, query)
    if form not in ALL_FORMS:
        raise unknown("output format", form, ALL_FORMS)
    context, uid = context_of(request), request.scope["state"]["uid"]
    listing, now = await _listing_request(request, query), timers.now()
    width = parse_number("width", query.width or "0", 0)
    is_short = bool(width) and form == "table" and _shows_all_ended(query, listing.wanted)
    if is_short:
        listing = msgspec.structs.replace(listing, limit=-LATEST)
    collapses = _is_collapsed(query, form)
    columns = columns_of(query.format, SHARED if context.settings.is_system else DEFAULT)
    style = ListingStyle(
        columns=columns,
        has_columns=bool(query.format),
        now=now,
        starts=await _expected_starts(request, now) if "START" in columns else {},
        gpu_use={},
        is_coloured=query.color,
        width=width,
    )
    media = "application/json" if form.endswith("json") else "text/plain; charset=utf-8"
    async with AsyncExitStack() as turn:
        await turn.enter_async_context(context.rate_limits.listing_turn(uid))
        search = find(context, listing, style.now)
        found = await (while_connected(request, search) if listing.is_past else search)
        if collapses:
            found, lines = await collapse(context, viewer_of(request), found, listing.wanted, now)
            style = style._replace(groups=lines)
        if width and not query.format:
            style = _add_progress(context, listing.wanted, style)
        if set(columns) & set(SAMPLED):
            found, style = await _add_gpu_use(request, found, style)
        shown = found._replace(entries=iter(viewer_of(request).redact_entries(found.entries)))
        pieces = ALL_FORMS[form](shown, style)
        if width and form in ("table", "tree", "group") and listing.wanted == Filter():
            pieces = await _with_totals(request, pieces, is_empty=not found.total and not listing.is_past)
        if is_short and found.total > LATEST:
            pieces = _concat(pieces, _only(f"(the last {LATEST} of {found.total}; -n 0 shows all)\n"))
        return await _respond(pieces, media, turn)


async def _list_rows(request: Request, query: JobsQuery) -> Response:
    """Answer with one row for each group, array and other job."""
    context, uid = context_of(request), request.scope["state"]["uid"]
    listing = await _listing_request(request, query)
    if listing.sort != "id":
        raise UsageError("rows are ordered by id", hint="sort=id or sort=-id")
    if listing.limit is not None and not 0 < listing.limit <= MOST_ROWS and query.limit:
        raise UsageError(f"a page has 1 to {MOST_ROWS} rows")
    async with context.rate_limits.listing_turn(uid):
        found = await while_connected(request, find_rows(context, viewer_of(request), listing, query.after))
    return Response(encode(found), media_type="application/json")


def _shows_all_ended(query: JobsQuery, wanted: Filter) -> bool:
    """Whether the listing is of all jobs that have ended: there may be thousands."""
    is_narrowed = bool(wanted.spans or wanted.names or wanted.since or query.limit or query.offset)
    return bool(wanted.states) and wanted.states <= FINAL and not is_narrowed and not query.sort


def _is_collapsed(query: JobsQuery, form: str) -> bool:
    """Whether each group is one line: if asked for, or in a table of all jobs on a terminal."""
    if query.collapse and query.expand:
        raise UsageError("--collapse or --expand, not both")
    if query.collapse and form != "table":
        raise UsageError("--collapse prints a table", hint="gjob show g116 --json has the figures of a group")
    chosen = (query.jobs, query.names, query.states, query.completed, query.sort, query.limit, query.offset)
    is_usual = form == "table" and query.width not in ("", "0") and not query.format and not any(chosen)
    return query.collapse or (is_usual and not query.expand)


def _add_progress(context: Context, wanted: Filter, style: ListingStyle) -> ListingStyle:
    """The style with columns for the progress of jobs, if one reports it that has a line of its own."""
    running, collapsed = context.loop.state.running, {line.group for line in style.groups.values()}
    jobs = [
        job
        for job in running.values()
        if job.progress_report is not None and job.spec.group not in collapsed and wanted.matches(job)
    ]
    if not jobs:
        return style
    has_loss = any(job.progress_report and job.progress_report.loss is not None for job in jobs)
    return style._replace(columns=with_progress(style.columns, has_loss=has_loss))


async def _add_gpu_use(request: Request, found: Found, style: ListingStyle) -> tuple[Found, ListingStyle]:
    """The listing with the GPU usage of its jobs, which is read from the samples."""
    context, viewer = context_of(request), viewer_of(request)
    entries = list(found.entries)
    keys = {job.label: job.key for job, _ in entries if job.attempt and viewer.sees_details(job)}
    use = await context.threads.run(viewer.uid, _read_gpu_use, context, list(keys))
    style = style._replace(gpu_use={keys[job]: one for job, one in use.items()})
    return found._replace(entries=iter(entries)), style


def _read_gpu_use(context: Context, jobs: list[str]) -> dict[str, GpuUse]:
    try:
        return usage_of_jobs(context.settings.samples, jobs)
    except sqlite3.Error as error:
        log.warning("the GPU samples cannot be read: %s", error)
        return {}


async def _with_totals(request: Request, pieces: AsyncIterator[str], *, is_empty: bool) -> AsyncIterator[str]:
    """The listing and its last line: totals, or that nothing is active."""
    context, viewer = context_of(request), viewer_of(request)
    if not is_empty:
        machine = context.loop.state.machine
        totals = totals_line(*count_jobs(context.loop.state), len(machine.gpus), len(machine.holders))
        return _concat(pieces, _only(totals))
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0).timestamp()
    filters = [Filter(states=states, since=midnight) for states in (FINAL, _FAILED)]
    ended, failed = await context.threads.read(
        viewer.uid, context.store.reader, lambda reader: [reader.count(one) for one in filters]
    )
    return _only(nothing_active(ended, failed))


def count_jobs(state: State) -> tuple[int, int]:
    """The number of running and of waiting jobs. Each waiting task of an array counts."""
    running = sum(state.accounting.group_running.values())
    arrays = [state.jobs[key].progress for key in state.jobs.arrays]
    tasks = sum(len(progress.pending) for progress in arrays if progress is not None)
    return running, len(state.jobs) - running - len(arrays) + tasks


async def _only(text: str) -> AsyncIterator[str]:
    yield text


async def _expected_starts(request: Request, now: Moment) -> dict[JobKey, float]:
    """Expected start times of waiting jobs, wall clock. Jobs that can never start have none."""
    context, (uid, _) = context_of(request), caller(request)
    found = await while_connected(request, context.forecasts.starts(uid))
    state = context.loop.state
    return {
        key: now.to_wall(start)
        for key, start in found.items()
        if (job := state.jobs.get(key)) is None or not why_never(state, job)
    }


async def list_starts(request: Request) -> Response:
    """When waiting jobs are expected to start, the soonest first."""
    query, viewer = query_of(request, StartsQuery), viewer_of(request)
    jobs = context_of(request).loop.state.jobs
    found = sorted((at, key) for key, at in (await _expected_starts(request, timers.now())).items())
    seen = [(at, key) for at, key in found if (job := jobs.get(key)) is not None and viewer.sees_job(job)]
    shown = [ExpectedStart(key_label(key), rfc3339(at)) for at, key in seen[: query.limit]]
    lines = "".join(f"{one.id} {one.expected_at}\n" for one in shown)
    return answer(request, lambda: StartsAnswer(starts=shown, total=len(seen)), lambda: lines)


async def _listing_request(request: Request, query: JobsQuery) -> ListingRequest:
    states = states_of(query.states)
    users = [name for name in split_list(query.users) if name not in (EVERY_USER, "*")]
    is_past = bool(query.all or query.completed or query.jobs or query.since)
    if states:
        is_past = bool(states & FINAL)
    sort, is_reversed = sort_of(query.sort or "id")
    targets = frozenset(split_list(query.targets))
    if not is_past:
        _check_targets(context_of(request), targets)
    wanted = Filter(
        states=FINAL if query.completed and not states else states,
        users=_visible_users(frozenset(users), viewer_of(request).only_users),
        names=frozenset(split_list(query.names)),
        projects=frozenset(split_list(query.projects)),
        targets=targets,
        partitions=frozenset(split_list(query.partitions)),
        spans=await spans_of(context_of(request), request, query.jobs),
        since=parse_since(query.since) if query.since else 0.0,
    )
    return ListingRequest(
        uid=caller(request)[0],
        wanted=wanted,
        is_past=is_past,
        sort=sort,
        is_reversed=is_reversed,
        sees_metrics=viewer_of(request).sees_details,
        limit=parse_number("limit", query.limit, -(10**9)) if query.limit else 0 if query.offset else None,
        offset=parse_number("offset", query.offset or "0", 0),
    )


def _check_targets(context: Context, targets: frozenset[str]) -> None:
    """Refuse a target that there is not. A job may be on one that gflow.toml has no more."""
    state, known = context.loop.state, [LOCAL, *context.settings.clusters]
    for name in sorted(targets.difference(known)):
        if not any(state.jobs[key].target == name for key in state.remote.jobs | state.remote.pending):
            raise unknown("target", name, known)


def _visible_users(users: frozenset[str], only: frozenset[str]) -> frozenset[str]:
    """Intersect the requested users with those that the caller may see; empty sets mean all users."""
    if not only:
        return users
    return only if not users or users & only else frozenset({""})


async def _respond(pieces: AsyncIterator[str], media: str, turn: AsyncExitStack) -> Response:
    """Answer in one piece, or stream if the answer exceeds `LARGE`."""
    first, size = [], 0
    async for piece in pieces:
        first.append(piece)
        size += len(piece)
        if size > LARGE:
            return TurnResponse(_concat(_only("".join(first)), pieces), turn.pop_all(), media_type=media)
    return Response("".join(first), media_type=media)


async def _concat(*parts: AsyncIterator[str]) -> AsyncIterator[str]:
    for part in parts:
        async for piece in part:
            yield piece
