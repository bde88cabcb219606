"""The event stream (server-sent events) with replay.

Events are entries of the audit log, so they survive a restart. A client that reconnects with the last id it
saw gets what it missed. No state is kept per client: each reads on from its position in the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow import __version__
from gflow.core.ids import JobKey, number_of
from gflow.core.model import AuditEntry, Job
from gflow.core.queries.audit_log import spread_all
from gflow.daemon.api.readings import READINGS_S, LatestReadings
from gflow.daemon.api.request import context_of, existing_job, keys_of, query_of
from gflow.daemon.api.response import TurnResponse
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.context import Context
from gflow.errors import UsageError, nearest
from gflow.wire.answers.event_stream import Connected, Missed, happening_view
from gflow.wire.answers.jobs import job_view
from gflow.wire.encoding import encode
from gflow.wire.events import EVENTS, names_of
from gflow.wire.queries import EventsQuery

KEEP_ALIVE_S = 15.0
# Under load, events within this time are sent together.
TOGETHER_S = 0.05
# Entries read in one query, and how many entries back a client may begin.
LINES = 200
REPLAY = 10_000
# Entries for operators only: they contain addresses of users and services.
OPERATOR_ONLY = frozenset({"notification failed"})


# An entry of the audit log: its number, the entry, whether it is the last with this number (an entry may be
# about many jobs), and its job.
StreamEntry = tuple[int, AuditEntry, bool, Job | None]


class Subscription(NamedTuple):
    """The events that a client subscribes to; an empty set means all."""

    names: frozenset[str]
    numbers: frozenset[int]
    # Whether to wait for new events after the replay.
    follow: bool
    # Whether to send readings of GPUs and progress of jobs too.
    readings: bool = False

    def matches(self, line: AuditEntry) -> bool:
        return not self.numbers or (line.key is not None and number_of(JobKey(line.key)) in self.numbers)


async def stream(request: Request) -> Response:
    """Stream events as they occur: after `Last-Event-ID`, or from now on.

    `events=job_failed,job_started` and `job=17` filter; with `follow=0` only stored events are sent.
    """
    context, query = context_of(request), query_of(request, EventsQuery)
    names = frozenset(filter(None, query.events.split(",")))
    for name in sorted(names.difference(EVENTS)):
        close = nearest(name, EVENTS)
        raise UsageError(f"there is no event {name!a:.60}", hint=f"did you mean {close}?" if close else "")
    keys = keys_of(context, request, query.job.split(",")) if query.job else []
    chosen = [existing_job(context, key) for key in keys]
    subscription = Subscription(names, frozenset(job.number for job in chosen), query.follow, query.readings)
    frames = _frames(context, viewer_of(request), subscription, _last_event_id(request, query))
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    async with AsyncExitStack() as turn:
        await turn.enter_async_context(context.rate_limits.count_stream(request.scope["state"]["uid"]))
        return TurnResponse(frames, turn.pop_all(), headers=headers, media_type="text/event-stream")


def _last_event_id(request: Request, query: EventsQuery) -> int | None:
    """The id of the last event that the client has seen, if it was sent."""
    text = request.headers.get("last-event-id", "") or query.after
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"Last-Event-ID is a number, not {text!a:.40}")
    return int(text) if text else None


async def _frames(
    context: Context, viewer: Viewer, subscription: Subscription, after: int | None
) -> AsyncIterator[bytes]:
    news, newest = context.loop.wakeups, context.store.latest_audit_id()
    at = newest if after is None or after > newest else after
    yield _frame("connected", at, Connected(event="connected", version=__version__, id=at))
    if newest - at > REPLAY:
        lost = newest - REPLAY
        yield _frame("missed", lost, Missed(event="missed", first=at + 1, last=lost))
        at = lost
    sent, readings = 0.0, LatestReadings(context, viewer) if subscription.readings else None
    while True:
        lines = _read_entries(context, at)
        if lines:
            text = news.shared(
                (at, subscription, viewer.cache_key), partial(_frames_of, lines, viewer, subscription)
            )
            at = lines[-1][0]
            if text:
                yield text
                sent = time.monotonic()
            await asyncio.sleep(0)
        elif not subscription.follow:
            return
        elif readings is not None and (text := readings.take()):
            yield text
            sent = time.monotonic()
        elif await news.wait(KEEP_ALIVE_S if readings is None else READINGS_S):
            if time.monotonic() - sent < TOGETHER_S:
                await asyncio.sleep(TOGETHER_S)
        elif readings is None or time.monotonic() - sent >= KEEP_ALIVE_S:
            yield b": nothing new\n\n"
            sent = time.monotonic()


def _read_entries(context: Context, after: int) -> list[StreamEntry]:
    """Entries after this number, each with the current state of its job. Shared by all streams."""

    def read() -> list[StreamEntry]:
        lines = spread_all(context.store.audit_after(after, LINES), LINES)
        return [(*one, None if one[1].key is None else context.job(JobKey(one[1].key))) for one in lines]

    return context.loop.wakeups.shared(after, read)


def _frames_of(lines: list[StreamEntry], viewer: Viewer, subscription: Subscription) -> bytes:
    return b"".join(_entry_frames(viewer, subscription, *one) for one in lines)


def _entry_frames(
    viewer: Viewer, subscription: Subscription, number: int, line: AuditEntry, is_last: bool, job: Job | None
) -> bytes:
    """The frames of one entry. Only the last has the id, so that a client that lost some gets all again."""
    if not subscription.matches(line) or (line.what in OPERATOR_ONLY and not viewer.is_operator):
        return b""
    if job is not None and not viewer.sees_job(job):
        return b""
    names = [name for name in names_of(line, job) if not subscription.names or name in subscription.names]
    shown = job_view(viewer.redact_job(job)) if job is not None and names else None
    if job is not None and not viewer.sees_details(job):
        line = line._replace(detail="")  # may contain paths and commands
    line = line._replace(detail=viewer.redact_text(line.detail))
    return b"".join(
        _frame(
            name, number if is_last and name is names[-1] else None, happening_view(number, name, line, shown)
        )
        for name in names
    )


def _frame(name: str, number: int | None, data: msgspec.Struct) -> bytes:
    head = f"event: {name}\n" if number is None else f"event: {name}\nid: {number}\n"
    return head.encode() + b"data: " + encode(data) + b"\n\n"
