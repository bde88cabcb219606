"""Forms of a listing that have the results of jobs: a table, CSV, JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from gflow.core.model import Moment
from gflow.daemon.api.job_search import Found
from gflow.daemon.api.response import ListingStyle, json_frame, json_items
from gflow.daemon.loop.cooperative import FEW, in_slices
from gflow.text.csv_yaml import csv_writer
from gflow.text.result_table import ResultRows, result_of
from gflow.wire.answers.results import ResultsAnswer


async def as_table(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    rows = await _gather(found, style.now)
    sheet, cells = rows.sheet(is_coloured=style.is_coloured)
    async for some in in_slices(cells):
        for row in some:
            sheet.add(row)
    async for lines in in_slices(sheet.lines(style.width, rows.cuttable)):
        yield "".join(lines)


async def as_csv(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    rows, line = await _gather(found, style.now), csv_writer()
    async for cells in in_slices(rows.csv_rows()):
        yield "".join(map(line, cells))


async def as_json(found: Found, style: ListingStyle) -> AsyncIterator[str]:
    head, end = json_frame(ResultsAnswer(results=[], total=found.total))
    comma = ""
    yield head
    async for entries in in_slices(found.entries, FEW):
        yield comma + json_items([result_of(entry, style.now) for entry in entries])
        comma = ","
    yield end


async def _gather(found: Found, now: Moment) -> ResultRows:
    rows = ResultRows()
    async for entries in in_slices(found.entries):
        for entry in entries:
            rows.add(result_of(entry, now))
    return rows


RESULT_FORMS: dict[str, Callable[[Found, ListingStyle], AsyncIterator[str]]] = {
    "results": as_table,
    "results-csv": as_csv,
    "results-json": as_json,
}
