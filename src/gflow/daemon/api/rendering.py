"""A listing as text or JSON, made in slices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import NamedTuple

from gflow.core.ids import JobKey, label
from gflow.core.model import Moment
from gflow.daemon.finding import NEWEST, Found
from gflow.daemon.slices import FEW, in_slices
from gflow.text.forms import CSV, csv_cells, csv_writer, yaml_item
from gflow.text.queue import ORDER, cuttable, queue_sheet, row_maker
from gflow.text.table import Sheet
from gflow.text.tree import Forest
from gflow.wire.views import encode, job_view


class Look(NamedTuple):
    """How a listing is to look."""

    columns: tuple[str, ...]
    # Whether somebody chose the columns.
    has_columns: bool
    now: Moment
    is_coloured: bool
    # Of the terminal; 0: there is none.
    width: int
    # When those who wait are expected to start, if a column says so.
    starts: Mapping[JobKey, float]

    def lines(self, sheet: Sheet) -> Iterator[str]:
        return sheet.lines(self.width, cuttable(self.columns))


async def as_table(found: Found, look: Look) -> AsyncIterator[str]:
    sheet = queue_sheet(look.columns, is_coloured=look.is_coloured)
    row = row_maker(look.columns, look.now, look.starts)
    async for entries in in_slices(found.entries):
        for entry in entries:
            sheet.add(row(entry))
    async for lines in in_slices(look.lines(sheet)):
        yield "".join(lines)
    yield _note(found)


async def as_groups(found: Found, look: Look) -> AsyncIterator[str]:
    """One table for each state that there is, all aligned alike."""
    widths = [0] * len(look.columns)
    sheets = {
        state: queue_sheet(look.columns, is_coloured=look.is_coloured, widths=widths) for state in ORDER
    }
    row = row_maker(look.columns, look.now, look.starts)
    async for entries in in_slices(found.entries):
        for entry in entries:
            sheets[entry[0].state].add(row(entry))
    gap = ""
    for state, sheet in sheets.items():
        if len(sheet):
            yield f"{gap}{state.value} ({len(sheet)})\n{'─' * 60}\n"
            async for lines in in_slices(look.lines(sheet)):
                yield "".join(lines)
            gap = "\n"
    yield _note(found)


async def as_tree(found: Found, look: Look) -> AsyncIterator[str]:
    """A table in which jobs stand below those they wait for."""
    forest = Forest()
    async for entries in in_slices(found.entries):
        for entry in entries:
            forest.add(entry)
    async for _ in in_slices(forest.link()):
        pass
    sheet = queue_sheet(look.columns, is_coloured=look.is_coloured)
    row = row_maker(look.columns, look.now, look.starts)
    at = look.columns.index("JOBID") if "JOBID" in look.columns else 0
    async for branches in in_slices(forest.walk()):
        for before, key, own in branches:
            cells = row(own) if own else [""] * len(look.columns)
            cells[at] = before + (cells[at] if own else f"→ {label(key)}")
            sheet.add(cells)
    async for lines in in_slices(look.lines(sheet)):
        yield "".join(lines)
    yield _note(found)


async def as_csv(found: Found, look: Look) -> AsyncIterator[str]:
    """The columns that somebody chose, or those that programs need."""
    line = csv_writer()
    row = row_maker(look.columns, look.now, look.starts)
    yield line(look.columns if look.has_columns else CSV)
    async for entries in in_slices(found.entries):
        cells = map(row, entries) if look.has_columns else (csv_cells(entry, look.now) for entry in entries)
        yield "".join(map(line, cells))


async def as_json(found: Found, look: Look) -> AsyncIterator[str]:
    comma = ""
    yield '{"jobs":['
    async for entries in in_slices(found.entries, FEW):
        yield comma + ",".join(encode(job_view(*entry)).decode() for entry in entries)
        comma = ","
    yield f'],"total":{found.total}}}'


async def as_yaml(found: Found, look: Look) -> AsyncIterator[str]:
    head = "jobs:\n"
    async for entries in in_slices(found.entries):
        yield head + "".join(yaml_item(job_view(*entry)) for entry in entries)
        head = ""
    yield f"{'jobs: []' + chr(10) if head else ''}total: {found.total}\n"


def _note(found: Found) -> str:
    return f"(of those that are over, the newest {NEWEST}; --limit 0 shows all)\n" if found.is_cut else ""


FORMS: dict[str, Callable[[Found, Look], AsyncIterator[str]]] = {
    "table": as_table,
    "json": as_json,
    "csv": as_csv,
    "yaml": as_yaml,
    "group": as_groups,
    "tree": as_tree,
}
