"""Responses: text for the command line, JSON for programs, problem documents for errors.

Listings and answers about many jobs are rendered in slices, so that the loop serves other requests meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gflow.core.ids import JobKey, label
from gflow.core.model import Moment
from gflow.daemon.api.job_search import NEWEST, Found
from gflow.daemon.api.request import context_of
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.loop.cooperative import FEW, SLICE, in_slices
from gflow.errors import GflowError, clean, clean_page
from gflow.job_states import LISTED
from gflow.text.csv_yaml import CSV, csv_cells, csv_writer, yaml_item
from gflow.text.group_row import GroupLine, group_row_maker
from gflow.text.queue import Entry, GpuUse, cuttable, queue_sheet, row_maker
from gflow.text.table import Sheet
from gflow.text.tree import Forest
from gflow.wire.answers.groups import GroupAnswer, ShownJobsAnswer
from gflow.wire.answers.jobs import JobsAnswer, job_view, jobs_view
from gflow.wire.answers.problems import problem
from gflow.wire.encoding import encode
from gflow.wire.shell_words import spell_hint

# Send timeout of `TimedTurnResponse`: an unread part of the answer occupies memory.
UNREAD_S = 30.0


def answer(
    request: Request, data: Callable[[], msgspec.Struct], text: Callable[[], str], status: int = 200
) -> Response:
    """Answer with `text()` if the caller accepts text, else with `data()` as JSON.

    Text is cleaned of control characters, because it is printed on terminals.
    """
    if wants_text(request):
        return Response(clean_page(text()), status, media_type="text/plain; charset=utf-8")
    return Response(encode(data()), status, media_type="application/json")


def add_note(response: Response, note: str) -> Response:
    """Add a note for the user as a header, because the body may be parsed by a program."""
    if note:
        response.headers["x-gflow-note"] = note
    return response


def wants_text(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("text/plain")


def json_frame(empty: msgspec.Struct) -> list[str]:
    """The JSON of an answer with empty lists, cut inside each list: a stream puts `json_items` in between."""
    return encode(empty).decode().replace("[]", "[\n]").split("\n")


def json_items(items: Sequence[Any]) -> str:
    """The items of a JSON list, without its brackets."""
    return encode(items).decode()[1:-1]


class TurnResponse(StreamingResponse):
    """A streamed answer that keeps its turn (a rate limit of the user) until it is sent."""

    def __init__(self, pieces: AsyncIterator[Any], turn: AsyncExitStack, **more: Any) -> None:
        super().__init__(pieces, **more)
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._turn:
            await super().__call__(scope, receive, send)


class TimedTurnResponse(TurnResponse):
    """A `TurnResponse` that aborts the connection if the client does not read for `UNREAD_S`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def within(message: Message) -> None:
            try:
                async with asyncio.timeout(UNREAD_S):
                    await send(message)
            except TimeoutError:
                scope["state"]["abort"]()

        await super().__call__(scope, receive, within)


async def on_error(request: Request, error: Exception) -> Response:
    """Turn a GflowError into a response, with the exit code for the command line as a header."""
    assert isinstance(error, GflowError)
    headers = {"x-gflow-exit": str(error.exit_code)}
    if wants_text(request):
        text = "".join(clean(line) + "\n" for line in (error.message, spell_hint(error)) if line)
        return Response(text, error.http_status, headers, media_type="text/plain; charset=utf-8")
    return Response(encode(problem(error)), error.http_status, headers, media_type="application/problem+json")


class ListingStyle(NamedTuple):
    """Columns, time and terminal of a listing."""

    columns: tuple[str, ...]
    # Whether the caller chose the columns.
    has_columns: bool
    now: Moment
    is_coloured: bool
    # Width of the terminal; 0 if there is none.
    width: int
    # Expected starts of waiting jobs; empty unless the column START is shown.
    starts: Mapping[JobKey, float]
    # GPU usage of jobs; empty unless a column shows it.
    gpu_use: Mapping[JobKey, GpuUse]
    # Groups that are one line, by the key of the job that stands for them.
    groups: Mapping[JobKey, GroupLine] = {}

    def lines(self, sheet: Sheet) -> Iterator[str]:
        wraps = self.columns[-1] in ("NODELIST(REASON)", "REASON")
        return sheet.lines(self.width, cuttable(self.columns), wraps=wraps)

    def row(self) -> Callable[[Entry], list[str]]:
        row = row_maker(self.columns, self.now, self.starts, self.gpu_use)
        return group_row_maker(self.columns, self.now, self.groups, row) if self.groups else row


async def as_table(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    sheet = queue_sheet(style.columns, is_coloured=style.is_coloured)
    row = style.row()
    async for entries in in_slices(found.entries):
        for entry in entries:
            sheet.add(row(entry))
    async for lines in in_slices(style.lines(sheet)):
        yield "".join(lines)
    yield _cut_note(found)


async def as_groups(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    """One table for each state that occurs, with common column widths."""
    widths = [0] * len(style.columns)
    sheets = {
        state: queue_sheet(style.columns, is_coloured=style.is_coloured, widths=widths) for state in LISTED
    }
    row = style.row()
    async for entries in in_slices(found.entries):
        for entry in entries:
            sheets[entry[0].state].add(row(entry))
    gap = ""
    for state, sheet in sheets.items():
        if len(sheet):
            yield f"{gap}{state.value} ({len(sheet)})\n{'─' * 60}\n"
            async for lines in in_slices(style.lines(sheet)):
                yield "".join(lines)
            gap = "\n"
    yield _cut_note(found)


async def as_tree(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    """A table in which jobs are indented below their dependencies."""
    forest = Forest()
    async for entries in in_slices(found.entries):
        for entry in entries:
            forest.add(entry)
    async for _ in in_slices(forest.link()):
        pass
    sheet = queue_sheet(style.columns, is_coloured=style.is_coloured)
    row = style.row()
    at = style.columns.index("JOBID") if "JOBID" in style.columns else 0
    async for branches in in_slices(forest.walk()):
        for before, key, own in branches:
            cells = row(own) if own else [""] * len(style.columns)
            cells[at] = before + (cells[at] if own else f"→ {label(key)}")
            sheet.add(cells)
    async for lines in in_slices(style.lines(sheet)):
        yield "".join(lines)
    yield _cut_note(found)


async def as_csv(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    """CSV of the columns that the caller chose, or else of `CSV`."""
    line = csv_writer()
    row = style.row()
    yield line(style.columns if style.has_columns else CSV)
    async for entries in in_slices(found.entries):
        cells = map(row, entries) if style.has_columns else (csv_cells(entry, style.now) for entry in entries)
        yield "".join(map(line, cells))


async def as_json(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    head, end = json_frame(JobsAnswer(jobs=[], total=found.total))
    comma = ""
    yield head
    async for entries in in_slices(found.entries, FEW):
        yield comma + json_items([job_view(*entry) for entry in entries])
        comma = ","
    yield end


async def as_yaml(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    head = "jobs:\n"
    async for entries in in_slices(found.entries):
        yield head + "".join(yaml_item(msgspec.structs.asdict(job_view(*entry))) for entry in entries)
        head = ""
    yield f"{'jobs: []' + chr(10) if head else ''}total: {found.total}\n"


def _cut_note(found: Found) -> str:
    return f"(of the ended jobs, the newest {NEWEST}; --limit 0 shows all)\n" if found.is_cut else ""


FORMS: dict[str, Callable[[Found, ListingStyle], AsyncIterator[str]]] = {
    "table": as_table,
    "json": as_json,
    "csv": as_csv,
    "yaml": as_yaml,
    "group": as_groups,
    "tree": as_tree,
}


Lines = Callable[[Iterable[JobKey]], Iterable[str]]


async def answer_jobs(
    request: Request, keys: Sequence[JobKey], lines: Lines, end: str = "", status: int = 200
) -> Response:
    """Answer with these jobs: one text line for each and `end`, or JSON.

    More than `SLICE` jobs are streamed.
    """
    context = context_of(request)
    if len(keys) <= SLICE:
        entries = context.entries
        return answer(
            request,
            lambda: jobs_view(entries(map(context.job, keys), viewer_of(request))),
            lambda: "".join(lines(keys)) + end,
            status,
        )
    if wants_text(request):
        return StreamingResponse(_text(keys, lines, end), status, media_type="text/plain; charset=utf-8")
    return StreamingResponse(_json(request, keys), status, media_type="application/json")


def shown_jobs(request: Request, keys: Sequence[JobKey], group: GroupAnswer | None = None) -> Response:
    """Answer in JSON with these jobs, and with the group or array that they are."""
    if len(keys) > SLICE:
        return StreamingResponse(_json(request, keys, [group]), media_type="application/json")
    context = context_of(request)
    view = jobs_view(context.entries(map(context.job, keys), viewer_of(request)))
    return Response(
        encode(ShownJobsAnswer(jobs=view.jobs, total=view.total, group=group)), media_type="application/json"
    )


async def _text(keys: Sequence[JobKey], lines: Lines, end: str) -> AsyncIterator[str]:
    async for some in in_slices(keys):
        yield clean_page("".join(lines(some)))
    yield clean_page(end)


async def _json(
    request: Request, keys: Sequence[JobKey], groups: Sequence[GroupAnswer | None] = ()
) -> AsyncIterator[str]:
    """Yield a `JobsAnswer`; with a group, a `ShownJobsAnswer`."""
    context, viewer = context_of(request), viewer_of(request)
    comma, total = "", 0
    yield json_frame(JobsAnswer(jobs=[], total=0))[0]
    async for some in in_slices(keys, FEW):
        entries = context.entries(map(context.job, some), viewer)
        if entries:
            yield comma + json_items([job_view(*entry) for entry in entries])
            comma, total = ",", total + len(entries)
    end = json_frame(JobsAnswer(jobs=[], total=total))[1]
    yield end[:-1] + "".join(f',"group":{encode(group).decode()}' for group in groups) + "}"
