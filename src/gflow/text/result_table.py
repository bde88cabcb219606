"""Results of jobs as rows: a table for terminals, cells for CSV."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from gflow.core.model import Moment
from gflow.result_columns import FIRST, LAST, TITLES, result_columns
from gflow.text.queue import STYLES, Entry, display_id, run_time
from gflow.text.table import Sheet, clock
from gflow.wire.answers.results import JobResult, job_result

# Characters that make a spreadsheet read a cell as a formula.
FORMULA = ("=", "+", "-", "@")


def result_of(entry: Entry, now: Moment) -> JobResult:
    """The result of a job of a listing."""
    job, why = entry
    return job_result(display_id(job), job, why, run_time(job, now))


class ResultRows:
    """Results of which all are known before the first is shown: their names decide the columns.

    Rows are removed as they are read.
    """

    def __init__(self) -> None:
        self._rows: deque[JobResult] = deque()
        self._parameters: dict[str, None] = {}
        self._metrics: dict[str, None] = {}

    def add(self, row: JobResult) -> None:
        self._rows.append(row)
        self._parameters |= dict.fromkeys(row.parameters)
        self._metrics |= dict.fromkeys(row.metrics)

    def sheet(self, *, is_coloured: bool) -> tuple[Sheet, Iterator[list[str]]]:
        """An empty table for terminals, and the cells of its rows."""
        parameters, metrics = result_columns(self._parameters, self._metrics)
        # NAME is shown where no parameters tell the jobs apart.
        first = [name for name in FIRST if name == "id" or not parameters]
        last = [name for name in LAST if name in TITLES]
        titles = [TITLES[name] for name in first], [TITLES[name] for name in last]
        header = [*titles[0], *parameters.values(), *metrics.values(), *titles[1]]
        styles = {header.index("STATE"): STYLES} if is_coloured else None
        return Sheet(header, styles), self._table_rows(first, list(parameters), list(metrics), last)

    def _table_rows(
        self, first: list[str], parameters: list[str], metrics: list[str], last: list[str]
    ) -> Iterator[list[str]]:
        for row in self._consumed():
            fixed = _shown(row)
            texts = [row.parameters.get(name, "-") for name in parameters]
            numbers = [_short(row.metrics.get(name)) for name in metrics]
            yield [*(fixed[name] for name in first), *texts, *numbers, *(fixed[name] for name in last)]

    @property
    def cuttable(self) -> list[list[int]]:
        """The columns that may be cut to fit a terminal: the parameters, or the name."""
        return [list(range(1, 1 + (len(self._parameters) or 1)))]

    def csv_rows(self) -> Iterator[list[str]]:
        """The cells of each line, header first. No cell but a number starts as a formula does."""
        parameters, metrics = result_columns(self._parameters, self._metrics)
        yield [*FIRST, *parameters.values(), *metrics.values(), *LAST]
        for row in self._consumed():
            fixed = msgspec.structs.asdict(row)
            texts = [row.parameters.get(name, "") for name in parameters]
            numbers = [row.metrics.get(name) for name in metrics]
            cells = [*(fixed[n] for n in FIRST), *texts, *numbers, *(fixed[n] for n in LAST)]
            yield ["" if cell is None else _no_formula(str(cell)) for cell in cells]

    def _consumed(self) -> Iterator[JobResult]:
        while self._rows:
            yield self._rows.popleft()


def _shown(row: JobResult) -> Mapping[str, str]:
    """The fixed cells of a table."""
    is_signal = row.exit_code is None and (row.reason or "").startswith("Signal:")
    return {
        "id": str(row.id),
        "name": row.name,
        "state": row.state,
        "exit_code": str(row.reason) if is_signal else "-" if row.exit_code is None else str(row.exit_code),
        "run_s": "-" if row.run_s is None else clock(row.run_s),
        "attempts": str(row.attempts),
    }


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _no_formula(cell: str) -> str:
    """The cell, with `'` before a text that a spreadsheet would compute."""
    return f"'{cell}" if cell.startswith(FORMULA) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
