"""One way to answer: text for the command line, JSON for programs, problems for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gflow.errors import GflowError, clean, clean_page
from gflow.wire.views import encode, problem

# How long a client may leave a part of an answer unread that takes memory until it is sent.
UNREAD_S = 30.0


def answer(request: Request, data: Callable[[], Any], text: Callable[[], str], status: int = 200) -> Response:
    """`text()` if the caller asked for text, else `data()` as JSON. Text goes to terminals."""
    if wants_text(request):
        return Response(clean_page(text()), status, media_type="text/plain; charset=utf-8")
    return Response(encode(data()), status, media_type="application/json")


def noted(response: Response, note: str) -> Response:
    """The answer, with a line for people beside it: what is printed may be for a program alone."""
    if note:
        response.headers["x-gflow-note"] = note
    return response


def wants_text(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("text/plain")


class Turn(StreamingResponse):
    """An answer that is somebody's turn until it is sent, however slowly they read."""

    def __init__(self, pieces: AsyncIterator[Any], turn: AsyncExitStack, **more: Any) -> None:
        super().__init__(pieces, **more)
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._turn:
            await super().__call__(scope, receive, send)


class InTime(Turn):
    """The same, given up when the client does not read it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def within(message: Message) -> None:
            try:
                async with asyncio.timeout(UNREAD_S):
                    await send(message)
            except TimeoutError:
                scope["state"]["abort"]()

        await super().__call__(scope, receive, within)


async def on_error(request: Request, error: Exception) -> Response:
    """A refusal, with the exit code for the shells."""
    assert isinstance(error, GflowError)
    headers = {"x-gflow-exit": str(error.exit_code)}
    if wants_text(request):
        lines = [error.message] + ([error.hint] if error.hint else [])
        text = "".join(clean(line) + "\n" for line in lines)
        return Response(text, error.http_status, headers, media_type="text/plain; charset=utf-8")
    return Response(encode(problem(error)), error.http_status, headers, media_type="application/problem+json")
