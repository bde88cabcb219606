"""Answers about many jobs, made in slices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gflow.core.ids import JobKey
from gflow.daemon.api.answers import answer, wants_text
from gflow.daemon.api.asking import context_of
from gflow.daemon.api.seeing import viewer
from gflow.daemon.slices import FEW, SLICE, in_slices
from gflow.errors import clean_page
from gflow.wire.views import encode, job_view, jobs_view

Lines = Callable[[Iterable[JobKey]], Iterable[str]]


async def about(
    request: Request, keys: Sequence[JobKey], lines: Lines, end: str = "", status: int = 200
) -> Response:
    """These jobs: a line for each and the end, or JSON. What is long is sent while it is made."""
    context = context_of(request)
    if len(keys) <= SLICE:
        entries = context.entries
        return answer(
            request,
            lambda: jobs_view(entries(map(context.job, keys), viewer(request))),
            lambda: "".join(lines(keys)) + end,
            status,
        )
    if wants_text(request):
        return StreamingResponse(_text(keys, lines, end), status, media_type="text/plain; charset=utf-8")
    return StreamingResponse(_json(request, keys), status, media_type="application/json")


async def _text(keys: Sequence[JobKey], lines: Lines, end: str) -> AsyncIterator[str]:
    async for some in in_slices(keys):
        yield clean_page("".join(lines(some)))
    yield clean_page(end)


async def _json(request: Request, keys: Sequence[JobKey]) -> AsyncIterator[str]:
    context, looks = context_of(request), viewer(request)
    comma, total = "", 0
    yield '{"jobs":['
    async for some in in_slices(keys, FEW):
        entries = context.entries(map(context.job, some), looks)
        if entries:
            yield comma + ",".join(encode(job_view(*entry)).decode() for entry in entries)
            comma, total = ",", total + len(entries)
    yield f'],"total":{total}}}'
