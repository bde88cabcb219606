"""The route that lists jobs: filter, order, limit, output format."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.ids import JobKey
from gflow.core.model import FINAL, Moment
from gflow.core.queries.job_filter import EVERY_USER, Filter
from gflow.daemon.api.job_search import ListingRequest, find
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
from gflow.daemon.api.response import FORMS, ListingStyle, TurnResponse, wants_text
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.loop import timers
from gflow.errors import unknown
from gflow.options.times import parse_since
from gflow.text.queue import DEFAULT, SHARED, columns_of, sort_of
from gflow.wire.queries import JobsQuery

# Answers above this size (characters) are streamed.
LARGE = 1 << 18


async def list_jobs(request: Request) -> Response:
    """List active jobs, or all jobs, with filters."""
    query = query_of(request, JobsQuery)
    form = query.form or ("table" if wants_text(request) else "json")
    if form not in FORMS:
        raise unknown("output format", form, FORMS)
    context, uid = context_of(request), request.scope["state"]["uid"]
    columns, now = columns_of(query.format, SHARED if context.settings.is_system else DEFAULT), timers.now()
    style = ListingStyle(
        columns=columns,
        has_columns=bool(query.format),
        now=now,
        starts=await _expected_starts(request, now) if "START" in columns else {},
        is_coloured=query.color,
        width=parse_number("width", query.width or "0", 0),
    )
    media = "application/json" if form == "json" else "text/plain; charset=utf-8"
    async with AsyncExitStack() as turn:
        await turn.enter_async_context(context.rate_limits.listing_turn(uid))
        listing = _listing_request(request, query)
        search = find(context, listing, style.now)
        found = await (while_connected(request, search) if listing.is_past else search)
        shown = found._replace(entries=iter(viewer_of(request).redact_entries(found.entries)))
        return await _respond(FORMS[form](shown, style), media, turn)


async def _expected_starts(request: Request, now: Moment) -> dict[JobKey, float]:
    """Expected start times of waiting jobs, wall clock."""
    context, (uid, _) = context_of(request), caller(request)
    found = await while_connected(request, context.forecasts.starts(uid))
    return {key: now.to_wall(start) for key, start in found.items()}


def _listing_request(request: Request, query: JobsQuery) -> ListingRequest:
    states = states_of(query.states)
    users = [name for name in split_list(query.users) if name not in (EVERY_USER, "*")]
    is_past = bool(query.all or query.completed or query.jobs or query.since)
    if states:
        is_past = bool(states & FINAL)
    sort, is_reversed = sort_of(query.sort or "id")
    wanted = Filter(
        states=FINAL if query.completed and not states else states,
        users=_visible_users(frozenset(users), viewer_of(request).only_users),
        names=frozenset(split_list(query.names)),
        projects=frozenset(split_list(query.projects)),
        targets=frozenset(split_list(query.targets)),
        partitions=frozenset(split_list(query.partitions)),
        spans=spans_of(context_of(request), request, query.jobs),
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
            return TurnResponse(_concat(first, pieces), turn.pop_all(), media_type=media)
    return Response("".join(first), media_type=media)


async def _concat(first: list[str], rest: AsyncIterator[str]) -> AsyncIterator[str]:
    for piece in first:
        yield piece
    async for piece in rest:
        yield piece
