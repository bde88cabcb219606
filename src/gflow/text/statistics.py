"""The pages of gstats: totals, longest jobs, users, projects; and predicted against measured memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict

from gflow.core.scheduling.placement import gib
from gflow.text.csv_yaml import csv_writer
from gflow.text.table import Sheet, clock, fine, moment, table
from gflow.wire.answers.statistics import Figures, PredictionsAnswer, StatsAnswer, TopJob

# Figures: field of the answer -> label on the page.
FIGURES = {
    "total_jobs": "Jobs",
    "completed_jobs": "Completed",
    "failed_jobs": "Failed",
    "cancelled_jobs": "Cancelled",
    "timeout_jobs": "Timed out",
    "running_jobs": "Running",
    "queued_jobs": "Waiting",
    "success_rate": "Success rate",
    "avg_wait_secs": "Average wait",
    "avg_runtime_secs": "Average run time",
    "total_gpu_hours": "GPU-hours",
    "jobs_with_gpus": "Jobs with GPUs",
    "avg_gpus_per_job": "GPUs per job with GPUs",
    "peak_gpu_usage": "Peak GPUs in use",
}
_SHORT = ("total_jobs", "completed_jobs", "failed_jobs", "success_rate", "avg_wait_secs", "total_gpu_hours")
_HEADS = ("JOBS", "COMPLETED", "FAILED", "SUCCESS", "AVG WAIT", "GPU-HOURS")


def statistics_page(stats: StatsAnswer, width: int = 0) -> str:
    """The page of `gstats`. `width`: columns of the terminal; 0: unknown."""
    lines = [
        ("Jobs of", stats.user or "all users"),
        ("Since", _since(stats.since)),
    ]
    lines += [(label, format_figure(name, getattr(stats, name))) for name, label in FIGURES.items()]
    labels = max(len(label) for label, _ in lines) + 1
    parts = ["".join(f"{label + ':':<{labels}}  {value}\n" for label, value in lines) + _note(stats)]
    if stats.top_jobs:
        parts.append("Longest jobs\n" + _top(stats.top_jobs, width))
    if len(stats.by_user) > 1:
        parts.append("By user\n" + _groups("USER", [(group.user, group) for group in stats.by_user]))
    if any(group.project for group in stats.by_project):
        parts.append(
            "By project\n" + _groups("PROJECT", [(group.project, group) for group in stats.by_project])
        )
    return "\n".join(parts)


def statistics_csv(stats: StatsAnswer) -> str:
    """A row of totals, a row per user, a row per project."""
    line = csv_writer()
    rows: list[Sequence[Any]] = [("scope", "name", *FIGURES), ("all", stats.user or "", *_cells(stats))]
    rows += [("user", group.user, *_cells(group)) for group in stats.by_user]
    rows += [("project", group.project or "", *_cells(group)) for group in stats.by_project]
    return "".join(map(line, rows))


def _cells(figures: Figures) -> list[Any]:
    """The figures in the order of `FIGURES`; empty where there is none."""
    values = (getattr(figures, name, None) for name in FIGURES)
    return ["" if value is None else value for value in values]


def format_figure(name: str, value: float | None) -> str:
    """Format a figure."""
    if value is None:
        return "-"
    if name.endswith("_secs"):
        return fine(value)
    if name == "success_rate":
        return f"{value:.1%}".replace("%", " %")
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _since(text: str | None) -> str:
    """The start of the period, in local time."""
    return moment(datetime.fromisoformat(text).timestamp()) if text else "the first stored job"


def _note(stats: StatsAnswer) -> str:
    left_out = stats.left_out_jobs
    kind = "real" if stats.simulated else "simulated"
    text = "(on simulated GPUs: no real device was used)\n" if stats.simulated else ""
    return text + (f"({left_out:,} jobs on {kind} GPUs are not counted)\n" if left_out else "")


def _top(jobs: Sequence[TopJob], width: int) -> str:
    sheet = Sheet(("JOBID", "NAME", "USER", "STATE", "TIME", "GPUS"))
    for job in jobs:
        texts = [str(getattr(job, name)) for name in ("id", "name", "user", "state", "gpus")]
        sheet.add([*texts[:4], clock(job.runtime_secs), texts[4]])
    return "".join(sheet.lines(width, [[1], [2]]))


def _groups(head: str, groups: Sequence[tuple[str | None, Figures]]) -> str:
    rows = [
        [name or "-", *(format_figure(figure, getattr(figures, figure)) for figure in _SHORT)]
        for name, figures in groups
    ]
    return table((head, *_HEADS), rows)


COLUMNS = ("id", "name", "user", "state", "predicted_mib", "measured_mib", "error_percent")
NONE = "No job was submitted with a prediction (gbatch --fit plan.json).\n"


def predictions_page(data: PredictionsAnswer, width: int = 0) -> str:
    """The page of `gstats --predictions`: a row per job, then the errors of the predictions."""
    if not data.jobs:
        return NONE
    sheet = Sheet(("JOBID", "NAME", "USER", "STATE", "PREDICTED", "MEASURED", "ERROR"))
    for job in data.jobs:
        measured = gib(job.measured_mib) if job.measured_mib else "-"
        error = "-" if job.error_percent is None else f"{job.error_percent:+.1f} %"
        texts = [str(getattr(job, name)) for name in COLUMNS[:4]]
        sheet.add([*texts, gib(job.predicted_mib), measured, error])
    return "".join(sheet.lines(width, [[1], [2]])) + _summary(data)


def _summary(data: PredictionsAnswer) -> str:
    count, measured = data.predicted_jobs, data.measured_jobs
    if not measured:
        where = " (simulated GPUs have nothing to measure)" if data.simulated else ""
        return f"{count} predicted, none measured{where}\n"
    return (
        f"{count} predicted, {measured} measured; error: median {data.median_error_percent:.1f} %, "
        f"p90 {data.p90_error_percent:.1f} %, worst {data.worst_error_percent:.1f} %; "
        f"{data.too_low_jobs} predicted too low\n"
    )


def predictions_csv(data: PredictionsAnswer) -> str:
    line = csv_writer()
    rows = [["" if job[name] is None else job[name] for name in COLUMNS] for job in map(asdict, data.jobs)]
    return line(COLUMNS) + "".join(map(line, rows))
