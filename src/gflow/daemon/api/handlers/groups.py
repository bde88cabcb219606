"""Routes about groups of jobs: the figures of one, and its page with a table of its jobs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gflow.core.ids import JobKey, job_key, number_of
from gflow.core.model import Job
from gflow.core.queries.job_filter import Filter
from gflow.daemon.api.group_search import GroupDetails, find_group, find_tasks
from gflow.daemon.api.job_search import ListingRequest, find
from gflow.daemon.api.request import caller, context_of, group_keys, parse_number, query_of, spans_of_keys
from gflow.daemon.api.response import ListingStyle, answer, as_table
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.loop import timers
from gflow.errors import UsageError, clean_page
from gflow.metric_names import is_metric_name
from gflow.text.group_page import ROWS, group_page, rows_note, tasks_page
from gflow.text.group_row import group_id, group_name
from gflow.wire.answers.groups import GroupAnswer, group_view
from gflow.wire.queries import ShowQuery

_ID = re.compile(r"g?(\d{1,12})", re.ASCII)


async def show_group(request: Request) -> Response:
    """The figures of a group of jobs, such as a sweep, or of an array."""
    text = request.path_params["group"]
    found = _ID.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!a:.60} is not a group", hint="write g116, or the id of an array")
    context, viewer = context_of(request), viewer_of(request)
    array = context.job(job_key(int(found[1])))
    if array is not None and array.is_array and viewer.sees_job(array):
        details = await tasks_details(request, array)
    else:
        details = await group_details(request, int(found[1]))
    view = details_view(request, details)
    return answer(request, lambda: view, lambda: group_page(view, details.summary, timers.now().wall))


async def group_details(request: Request, group: int) -> GroupDetails:
    """The details of a group, ranked as the query asks."""
    metric, is_highest_best = _ranking(request)
    return await find_group(request, group, metric, is_highest_best=is_highest_best)


async def tasks_details(request: Request, array: Job) -> GroupDetails:
    """The details of an array, ranked as the query asks."""
    metric, is_highest_best = _ranking(request)
    return await find_tasks(request, array, metric, is_highest_best=is_highest_best)


def _ranking(request: Request) -> tuple[str, bool]:
    query = query_of(request, ShowQuery)
    if not is_metric_name(query.metric):
        raise UsageError(f"{query.metric!a:.60} cannot be the name of a metric", hint="--metric val_loss")
    return query.metric, query.highest


def details_view(request: Request, details: GroupDetails) -> GroupAnswer:
    """The answer with these details."""
    first = details.first
    id_ = group_id(first)
    return group_view(
        first.number if id_.isdecimal() else id_,
        group_name(first, has_one_name=first.name == details.last.name),
        first.user,
        details.summary,
        now=timers.now().wall,
        metric=query_of(request, ShowQuery).metric,
        best=details.best,
        worst=details.worst,
        parameters=details.parameters,
        failed=details.failed,
    )


# ---------------------------------------------------------------- the page of gjob show


def group_response(request: Request, details: GroupDetails) -> Response:
    """The page of a group, and the table of its jobs."""
    view = details_view(request, details)
    page = group_page(view, details.summary, timers.now().wall)
    return _stream(_with_table(request, page, view, details))


def tasks_response(request: Request, details: GroupDetails, page: str) -> Response:
    """The page of an array, what it says about its tasks, and their table."""
    view = details_view(request, details)
    return _stream(_with_table(request, page + tasks_page(view, timers.now().wall), view, details))


def _stream(pieces: AsyncIterator[str]) -> Response:
    return StreamingResponse(pieces, media_type="text/plain; charset=utf-8")


async def _with_table(
    request: Request, page: str, view: GroupAnswer, details: GroupDetails
) -> AsyncIterator[str]:
    """Yield the page and the table of jobs; on a terminal, only the first jobs."""
    context, query, now = context_of(request), query_of(request, ShowQuery), timers.now()
    yield clean_page(page)
    width = parse_number("width", query.width or "0", 0)
    listing = ListingRequest(
        uid=caller(request)[0],
        wanted=Filter(spans=await _spans(request, details)),
        is_past=True,
        limit=ROWS if width else 0,
    )
    found = await find(context, listing, now)
    if not found.total:
        return
    style = ListingStyle(
        columns=_columns(details, view),
        has_columns=True,
        now=now,
        is_coloured=query.color,
        width=width,
        starts={},
        gpu_use={},
    )
    yield "\n"
    shown = found._replace(entries=iter(viewer_of(request).redact_entries(found.entries)), is_cut=False)
    async for piece in as_table(shown, style):
        yield piece
    yield rows_note(view, min(ROWS, found.total) if width else found.total, found.total)


def _columns(details: GroupDetails, view: GroupAnswer) -> tuple[str, ...]:
    """The columns of the table: what tells the jobs apart, and the metric if they report it."""
    apart = ["PARAMS"] if details.parameters else ["NAME"] if details.members.group > 0 else []
    metric = ["LOSS" if view.metric == "loss" else view.metric] if view.best else []
    return ("JOBID", "ST", "TIME", *apart, *metric, "NODELIST(REASON)")


async def _spans(request: Request, details: GroupDetails) -> tuple[tuple[int, int], ...]:
    """The key ranges of the jobs of a group. Usually their numbers are consecutive."""
    members, total = details.members, details.summary.counts.total
    numbers = number_of(JobKey(members.last)) - number_of(JobKey(members.first)) + 1
    if members.group < 0 or numbers == total:
        return ((members.first, members.last),)
    return spans_of_keys(await group_keys(context_of(request), viewer_of(request), members.group))
