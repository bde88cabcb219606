"""Bulk work in parts of at most PART jobs, so that other requests wait for one part, never for all of it.

A submission is all or nothing (`daemon.loop.bulk_submission`). Its jobs become durable part by part, hidden,
and become visible with the commit that closes it (`core.lifecycle.staged_submit`). A daemon that ends before
that leaves an open submission, and the next daemon deletes its jobs. A user action (cancel, hold, release,
update) is checked for all jobs first, then recorded as an intent in one commit, then applied part by part
(`daemon.loop.bulk_actions`); the next daemon continues an unfinished intent. Both are answered when all parts
are durable. Users take turns, part by part (`daemon.loop.turns`). If the client disconnects before the
submission is closed or the intent is recorded, the request is abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from gflow.core.events import Event
from gflow.core.model import Moment
from gflow.core.state.state import State
from gflow.daemon.loop.commands import Command
from gflow.daemon.loop.turns import Turns
from gflow.errors import UsageError


class Loop(Protocol):
    """The part of the event loop (`daemon.loop.loop.Loop`) that bulk work uses."""

    state: State
    turns: Turns
    # Numbers of intents that are being carried out.
    busy: set[int]
    read_only: str

    async def run_command(self, command: Command) -> Any: ...
    def post(self, make: Callable[[Moment], Event]) -> None: ...
    def arrival(self, first: int) -> asyncio.Future[None]: ...
    def forget_arrival(self, first: int) -> None: ...
    def next_intent(self) -> int: ...


class Request(Protocol):
    """A request that a client waits for."""

    # Whether the client disconnected.
    is_dropped: bool


def check_connected(request: Request) -> None:
    """Stop the request if its client disconnected."""
    if request.is_dropped:
        raise UsageError("the client hung up")
