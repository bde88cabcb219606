"""Results of jobs: names of columns, cells that are safe in CSV and on a terminal."""

from __future__ import annotations

import csv
import io
import math

from hypothesis import given
from hypothesis import strategies as st

from gflow.core.model import Job, JobProgress, JobState, Moment
from gflow.result_columns import FIRST, LAST, TITLES, result_columns
from gflow.text.csv_yaml import csv_writer
from gflow.text.queue import sort_key
from gflow.text.result_table import ResultRows, result_of

from .builders import NOON, ended, job

NOW = Moment(NOON + 100, 100.0)
LINE = csv_writer()
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,12}", fullmatch=True) | st.sampled_from(
    [*FIRST, *LAST, *TITLES.values(), "metrics.loss", "parameters.lr", "lr", "loss"]
)


def rows_of(*jobs: Job) -> ResultRows:
    rows = ResultRows()
    for one in jobs:
        rows.add(result_of((one, None), NOW))
    return rows


def csv_of(*jobs: Job) -> str:
    return "".join(map(LINE, rows_of(*jobs).csv_rows()))


def table_of(*jobs: Job, width: int = 0) -> str:
    rows = rows_of(*jobs)
    sheet, cells = rows.sheet(is_coloured=False)
    for row in cells:
        sheet.add(row)
    return "".join(sheet.lines(width, rows.cuttable))


def reported(loss: float, **metrics: float) -> JobProgress:
    return JobProgress(at=NOON, step=1, loss=loss, metrics=metrics)


def test_each_parameter_and_each_metric_is_a_column() -> None:
    first = ended(
        1, parameters=(("lr", "0.1"),), progress_report=reported(1 / 3, acc=0.5), exit_code=0, attempt=1
    )
    second = ended(2, JobState.FAILED, parameters=(("seed", "7"),), exit_code=3, attempt=2, started_at=NOON)
    assert csv_of(first, second) == (
        "id,name,lr,seed,loss,acc,state,reason,exit_code,run_s,attempts\n"
        "1,job-1,0.1,,0.3333333333333333,0.5,Finished,,0,,1\n"
        "2,job-2,,7,,,Failed,,3,100.0,2\n"
    )
    assert [line.split() for line in table_of(first, second).splitlines()] == [
        ["JOBID", "lr", "seed", "loss", "acc", "STATE", "EXIT", "TIME", "ATTEMPTS"],
        ["1", "0.1", "-", "0.3333", "0.5", "Finished", "0", "-", "1"],
        ["2", "-", "7", "-", "-", "Failed", "3", "00:01:40", "2"],
    ]


def test_jobs_without_parameters_show_their_names() -> None:
    killed = ended(2, JobState.FAILED, name="eval", reason="Signal:9")
    header, row = (line.split() for line in table_of(killed).splitlines())
    assert dict(zip(header, row, strict=True))["NAME"] == "eval"
    assert dict(zip(header, row, strict=True))["EXIT"] == "Signal:9"


def test_a_name_that_is_taken_has_a_prefix() -> None:
    parameters, metrics = result_columns(
        ["state", "Time", "lr", "loss"], ["loss", "acc", "metrics.acc", "ID"]
    )
    assert list(parameters.values()) == ["parameters.state", "parameters.Time", "lr", "parameters.loss"]
    assert list(metrics.values()) == ["metrics.loss", "acc", "metrics.metrics.acc", "metrics.ID"]


@given(st.lists(names, unique=True), st.lists(names, unique=True))
def test_columns_are_distinct(parameters: list[str], metrics: list[str]) -> None:
    columns = [name for names in result_columns(parameters, metrics) for name in names.values()]
    fixed = [*FIRST, *LAST, *TITLES.values()]
    assert len({*columns, *fixed}) == len(columns) + len({*fixed})


@given(st.text(max_size=20) | st.from_regex(r"[=+@\-\t\r\n][ -~]*", fullmatch=True), st.text(max_size=9))
def test_hostile_texts_stay_in_their_cells(value: str, name: str) -> None:
    hostile = ended(1, parameters=(("lr", value),), name=name)
    text = csv_of(hostile)
    header, cells = csv.reader(io.StringIO(text))
    assert len(header) == len(cells) and text.replace("\n", "").isprintable()
    for cell in cells:
        assert (
            not cell.startswith(("=", "+", "-", "@")) or not math.isnan(float(cell)) or "nan" in cell.lower()
        )
    table = table_of(hostile, width=60)
    assert table.count("\n") == 2 and table.replace("\n", "").isprintable()


def test_a_formula_becomes_text_and_a_number_stays() -> None:
    cells = csv_of(ended(1, parameters=(("a", "=1+1"), ("b", "-0.5"), ("c", "-x"), ("d", 'q"u,o\x1b[31m\n'))))
    assert cells.splitlines()[1].startswith('1,job-1,\'=1+1,-0.5,\'-x,"q""u,o\\x1b[31m\\n",')


def test_results_sort_by_a_metric_and_else_by_a_parameter() -> None:
    jobs = [
        job(1, parameters=(("lr", "10"),)),
        job(2, parameters=(("lr", "9"),)),
        job(3, parameters=(("lr", "auto"),)),
        job(4),
    ]
    key = sort_key("lr", NOW)
    assert [entry[0].number for entry in sorted(((one, None) for one in jobs), key=key)] == [2, 1, 3, 4]
    hidden = sort_key("lr", NOW, sees_metrics=lambda shown: False)
    assert [entry[0].number for entry in sorted(((one, None) for one in jobs), key=hidden)] == [1, 2, 3, 4]
