"""Events as they happen: server-sent, with ids, and those of the past for whoever was away.

They are the lines of the audit, so they survive the daemon, and a caller who comes back with
the last id it saw gets what it missed. Nothing is kept per caller: each reads on from its place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gflow import __version__
from gflow.core.ids import JobKey, number_of
from gflow.core.model import AuditEntry, Job
from gflow.core.queries.audit_log import spread_all
from gflow.daemon.api.request import context_of, existing_job, keys_of, query_of
from gflow.daemon.api.response import TurnResponse
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.context import Context
from gflow.errors import UsageError, nearest
from gflow.wire.events import EVENTS, happening_view, names_of
from gflow.wire.queries import EventsQuery
from gflow.wire.views import encode, job_view

KEEP_ALIVE_S = 15.0
# Under load, what happens within this time is sent together.
TOGETHER_S = 0.05
# How many lines are read in one go, and how far back a caller may begin.
LINES = 200
REPLAY = 10_000
# What only those hear of who govern the machine: it names addresses of people and of programs.
GOVERNORS = frozenset({"notification failed"})


# A line of the story: its number, what it says, whether it is the last of its number (one may be about many
# jobs), and the job that it is about.
Told = tuple[int, AuditEntry, bool, Job | None]


class Wanted(NamedTuple):
    """What a caller wants to hear of: nothing named means everything."""

    names: frozenset[str]
    numbers: frozenset[int]
    # Whether to go on with what is yet to come.
    follow: bool

    def has(self, line: AuditEntry) -> bool:
        return not self.numbers or (line.key is not None and number_of(JobKey(line.key)) in self.numbers)


async def stream(request: Request) -> Response:
    """What happens, as it happens, from `Last-Event-ID` on or from now.

    `events=job_failed,job_started` and `job=17` choose; with `follow=0` the answer ends with what there is.
    """
    context, query = context_of(request), query_of(request, EventsQuery)
    names = frozenset(filter(None, query.events.split(",")))
    for name in sorted(names.difference(EVENTS)):
        close = nearest(name, EVENTS)
        raise UsageError(f"there is no event {name!a:.60}", hint=f"did you mean {close}?" if close else "")
    keys = keys_of(context, request, query.job.split(",")) if query.job else []
    chosen = [existing_job(context, key) for key in keys]
    wanted = Wanted(names, frozenset(job.number for job in chosen), query.follow)
    frames = _frames(context, viewer_of(request), wanted, _asked_id(request, query))
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    async with AsyncExitStack() as turn:
        await turn.enter_async_context(context.fairness.stream(request.scope["state"]["uid"]))
        return TurnResponse(frames, turn.pop_all(), headers=headers, media_type="text/event-stream")


def _asked_id(request: Request, query: EventsQuery) -> int | None:
    """The last event that the caller has seen, if it says so."""
    text = request.headers.get("last-event-id", "") or query.after
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"Last-Event-ID is a number, not {text!a:.40}")
    return int(text) if text else None


async def _frames(
    context: Context, viewer: Viewer, wanted: Wanted, after: int | None
) -> AsyncIterator[bytes]:
    news, newest = context.loop.news, context.store.newest_line()
    at = newest if after is None or after > newest else after
    yield _frame("connected", at, {"event": "connected", "version": __version__, "id": at})
    if newest - at > REPLAY:
        lost = newest - REPLAY
        yield _frame("missed", lost, {"event": "missed", "from": at + 1, "to": lost})
        at = lost
    sent = 0.0
    while True:
        lines = _lines(context, at)
        if lines:
            text = news.shared((at, wanted, viewer.cache_key), partial(_frames_of, lines, viewer, wanted))
            at = lines[-1][0]
            if text:
                yield text
                sent = time.monotonic()
            await asyncio.sleep(0)
        elif not wanted.follow:
            return
        elif await news.wait(KEEP_ALIVE_S):
            if time.monotonic() - sent < TOGETHER_S:
                await asyncio.sleep(TOGETHER_S)
        else:
            yield b": nothing new\n\n"


def _lines(context: Context, after: int) -> list[Told]:
    """What comes after this line, each with its job as it is now."""

    def read() -> list[Told]:
        lines = spread_all(context.store.lines(after, LINES), LINES)
        return [(*one, None if one[1].key is None else context.job(JobKey(one[1].key))) for one in lines]

    return context.loop.news.shared(after, read)


def _frames_of(lines: list[Told], viewer: Viewer, wanted: Wanted) -> bytes:
    return b"".join(_told(viewer, wanted, *one) for one in lines)


def _told(
    viewer: Viewer, wanted: Wanted, number: int, line: AuditEntry, is_last: bool, job: Job | None
) -> bytes:
    """The frames of one line; the last has the id, so that a caller who lost the end gets all again."""
    if not wanted.has(line) or (line.what in GOVERNORS and not viewer.is_operator):
        return b""
    if job is not None and not viewer.sees_job(job):
        return b""
    names = [name for name in names_of(line, job) if not wanted.names or name in wanted.names]
    shown = job_view(viewer.redact_job(job)) if job is not None and names else None
    if job is not None and not viewer.sees_details(job):
        line = line._replace(detail="")  # it may name paths and commands
    line = line._replace(detail=viewer.redact_text(line.detail))
    return b"".join(
        _frame(
            name, number if is_last and name is names[-1] else None, happening_view(number, name, line, shown)
        )
        for name in names
    )


def _frame(name: str, number: int | None, data: dict[str, Any]) -> bytes:
    head = f"event: {name}\n" if number is None else f"event: {name}\nid: {number}\n"
    return head.encode() + b"data: " + encode(data) + b"\n\n"
