"""Jobs as CSV and YAML, one line or item per job."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gflow.core.model import Moment
from gflow.errors import clean
from gflow.text.queue import Entry, run_time
from gflow.text.table import clock
from gflow.wire.views import job_view

# The first eight columns are those of the original gflow.
CSV = (
    "id", "name", "state", "time", "gpus", "user", "submitted_at", "reason", "project", "gpu_ids",
    "started_at", "finished_at", "exit_code", "attempt", "priority",
)  # fmt: skip


class _Echo:
    """File object for the csv module that returns the line instead of writing it."""

    def write(self, line: str) -> str:
        return line


def csv_writer() -> Callable[[Sequence[Any]], str]:
    """A function that encodes cells as one CSV line. Line breaks within cells are escaped."""
    write = csv.writer(_Echo(), lineterminator="\n").writerow
    return lambda cells: str(write([clean(str(cell)) for cell in cells]))


def csv_cells(entry: Entry, now: Moment) -> list[str]:
    """The CSV cells of a job."""
    view = job_view(*entry)
    seconds = run_time(entry[0], now)
    view["time"] = None if seconds is None else clock(seconds)
    view["gpu_ids"] = " ".join(map(str, view["gpu_ids"]))
    return ["" if view[name] is None else str(view[name]) for name in CSV]


def _json(value: Any) -> str:
    """One line of JSON without control characters."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() else json.dumps(msgspec.json.decode(text))


def yaml_item(view: Mapping[str, Any]) -> str:
    """One item of a YAML list, in block style. Values are JSON, a subset of YAML."""
    lines = [f"{name}: {_json(value)}\n" for name, value in view.items()]
    return "- " + "  ".join(lines)
