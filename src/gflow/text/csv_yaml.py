"""Jobs as CSV and YAML, one line or item per job."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from gflow.core.model import Moment
from gflow.errors import clean
from gflow.text.queue import Entry, run_time
from gflow.text.table import clock
from gflow.wire.answers.jobs import job_view
from gflow.wire.encoding import encode

# The first eight columns are those of the original gflow.
CSV = (
    "id", "name", "state", "time", "gpus", "user", "submitted_at", "reason", "project", "gpu_ids",
    "started_at", "finished_at", "exit_code", "attempt", "priority",
)  # fmt: skip
_TIME, _GPU_IDS = CSV.index("time"), CSV.index("gpu_ids")
# The columns of a `JobView`. It has no `time`: `csv_cells` computes that.
_columns = attrgetter(*("ran_s" if name == "time" else name for name in CSV))


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
    view, seconds = job_view(*entry), run_time(entry[0], now)
    cells = list(_columns(view))
    cells[_TIME] = None if seconds is None else clock(seconds)
    cells[_GPU_IDS] = " ".join(map(str, view.gpu_ids))
    return ["" if cell is None else str(cell) for cell in cells]


def _json(value: Any) -> str:
    """One line of JSON without control characters."""
    text = encode(value).decode()
    return text if text.isprintable() else json.dumps(msgspec.json.decode(text))


def yaml_item(view: Mapping[str, Any]) -> str:
    """One item of a YAML list, in block style. Values are JSON, a subset of YAML."""
    lines = [f"{name}: {_json(value)}\n" for name, value in view.items()]
    return "- " + "  ".join(lines)
