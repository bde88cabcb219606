"""The page of `gstats --predictions`: GPU memory predicted beside measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflow.core.place import gib
from gflow.text.forms import csv_writer
from gflow.text.table import Sheet

COLUMNS = ("id", "name", "user", "state", "predicted_mib", "measured_mib", "error_percent")
NONE = "No job was submitted with a prediction (gbatch --fit plan.json).\n"


def predictions_page(data: Mapping[str, Any], width: int = 0) -> str:
    """A row for each job, then how good the predictions were."""
    if not data["jobs"]:
        return NONE
    sheet = Sheet(("JOBID", "NAME", "USER", "STATE", "PREDICTED", "MEASURED", "ERROR"))
    for job in data["jobs"]:
        measured = gib(job["measured_mib"]) if job["measured_mib"] else "-"
        error = "-" if job["error_percent"] is None else f"{job['error_percent']:+.1f} %"
        texts = [str(job[name]) for name in COLUMNS[:4]]
        sheet.add([*texts, gib(job["predicted_mib"]), measured, error])
    return "".join(sheet.lines(width, [[1], [2]])) + _summary(data)


def _summary(data: Mapping[str, Any]) -> str:
    count, measured = data["predicted_jobs"], data["measured_jobs"]
    if not measured:
        where = " (simulated GPUs have nothing to measure)" if data["simulated"] else ""
        return f"{count} predicted, none measured{where}\n"
    return (
        f"{count} predicted, {measured} measured; error: median {data['median_error_percent']:.1f} %, "
        f"p90 {data['p90_error_percent']:.1f} %, worst {data['worst_error_percent']:.1f} %; "
        f"{data['too_low_jobs']} predicted too low\n"
    )


def predictions_csv(data: Mapping[str, Any]) -> str:
    line = csv_writer()
    rows = [["" if job[name] is None else job[name] for name in COLUMNS] for job in data["jobs"]]
    return line(COLUMNS) + "".join(map(line, rows))
