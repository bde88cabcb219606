"""Jobs for other programs, one text for each: CSV and YAML."""

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

# The first eight as gflow has always had them.
CSV = (
    "id", "name", "state", "time", "gpus", "user", "submitted_at", "reason", "project", "gpu_ids",
    "started_at", "finished_at", "exit_code", "attempt", "priority",
)  # fmt: skip


class _Echo:
    """What the csv module writes to: gives back the line instead."""

    def write(self, line: str) -> str:
        return line


def csv_writer() -> Callable[[Sequence[Any]], str]:
    """What makes one line of cells. One line, whatever they hold."""
    write = csv.writer(_Echo(), lineterminator="\n").writerow
    return lambda cells: str(write([clean(str(cell)) for cell in cells]))


def csv_cells(entry: Entry, now: Moment) -> list[str]:
    """The cells of CSV for a job."""
    view = job_view(*entry)
    seconds = run_time(entry[0], now)
    view["time"] = None if seconds is None else clock(seconds)
    view["gpu_ids"] = " ".join(map(str, view["gpu_ids"]))
    return ["" if view[name] is None else str(view[name]) for name in CSV]


def _json(value: Any) -> str:
    """One line of JSON that no terminal takes for a command."""
    text = msgspec.json.encode(value).decode()
    return text if text.isprintable() else json.dumps(msgspec.json.decode(text))


def yaml_item(view: Mapping[str, Any]) -> str:
    """One member of a list, in block style. Values are JSON, which is YAML too."""
    lines = [f"{name}: {_json(value)}\n" for name, value in view.items()]
    return "- " + "  ".join(lines)
