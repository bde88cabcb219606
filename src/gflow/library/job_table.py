"""HTML tables of jobs, for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

ROWS = 200
# Fields of a progress report that are measurements.
MEASURED = ("loss", "samples_per_s")


def metrics_of(job: Mapping[str, Any]) -> dict[str, float]:
    """The measurements of the last progress report of a job."""
    report = job["progress"] or {}
    measured = {name: report[name] for name in MEASURED if report.get(name) is not None}
    return measured | (report.get("metrics") or {})


def job_table(jobs: Sequence[Mapping[str, Any]], total: int = 0) -> str:
    """A table of the first `ROWS` jobs, of `total`. Columns in which no job has a value are left out."""
    shown = jobs[:ROWS]
    cells = {title: [read(job) for job in shown] for title, read in COLUMNS.items()}
    titles = [title for title, column in cells.items() if any(column)] if shown else ["job"]
    rows = "".join(_row("td", [cells[title][number] for title in titles]) for number in range(len(shown)))
    left_out = max(total, len(jobs)) - len(shown)
    more = f"<caption>and {left_out} more</caption>" if left_out else ""
    return f"<table>{more}<thead>{_row('th', titles)}</thead><tbody>{rows}</tbody></table>"


def _row(kind: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def progress_text(job: Mapping[str, Any]) -> str:
    """How far a job is, by its last report: `step 40/100, 40 %`; empty: it sent none."""
    report = job["progress"]
    if report is None:
        return ""
    if report["steps"] is None:
        return f"step {report['step']}"
    return f"step {report['step']}/{report['steps']}, {report['percent']} %"


def metrics_text(job: Mapping[str, Any]) -> str:
    """The measurements of the last report: `loss 0.31, samples_per_s 120`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics_of(job).items())


def run_time_text(job: Mapping[str, Any]) -> str:
    """The run time of the last attempt: `1:02:03`; empty: it has not ended."""
    if job["ran_s"] is None:
        return ""
    minutes, seconds = divmod(round(job["ran_s"]), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "job": lambda job: str(job["id"]),
    "name": lambda job: str(job["name"]),
    "user": lambda job: str(job["user"]),
    "state": lambda job: str(job["state"]),
    "reason": lambda job: str(job["reason"] or ""),
    "GPUs": lambda job: ",".join(map(str, job["gpu_ids"])) or (str(job["gpus"]) if job["gpus"] else ""),
    "parameters": lambda job: ", ".join(f"{name}={value}" for name, value in job["parameters"].items()),
    "progress": progress_text,
    "metrics": metrics_text,
    "run time": run_time_text,
}
