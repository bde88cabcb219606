"""The request that a command line of gcancel stands for."""

from __future__ import annotations

from gflow.options.job_options import SIGNALS, refuse

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

FILTERS = {"name": "names", "state": "states", "project": "projects", "user": "users"}


def gcancel_request(values: dict[str, Any], jobs: list[str]) -> tuple[str, dict[str, Any]]:
    """The path and the body of the request. The caller is in `user` already, with --me. Raises UsageError."""
    filters = {
        plural: [part for part in values[name].split(",") if part]
        for name, plural in FILTERS.items()
        if name in values
    }
    _check(values, jobs, filters)
    selected = {"jobs": jobs, "all": "all" in values, **filters}
    if "signal" in values:
        return "/jobs/signal", selected | {"signal": values["signal"], "batch": "batch" in values}
    return "/jobs/cancel", selected | {"now": "now" in values, "dry_run": "dry-run" in values}


def _check(values: dict[str, Any], jobs: list[str], filters: dict[str, list[str]]) -> None:
    if not jobs and not filters and "all" not in values:
        refuse("no job is named", "gcancel 42, gcancel @ for your latest, or gcancel --all")
    if signals := [name for name in filters.get("states", ()) if name.upper().removeprefix("SIG") in SIGNALS]:
        refuse(
            f"{signals[0]!a} is not a state", "-s is --state here; Slurm's -s is --signal: gcancel --signal"
        )
    if "all" in jobs:
        refuse("'all' is not a job id", "gcancel --all cancels all your jobs")
    if "batch" in values and "signal" not in values:
        refuse("--batch is for --signal", "gcancel --signal USR1 --batch 42")
    for name in ("now", "dry-run"):
        if name in values and "signal" in values:
            refuse(f"--{name} is for cancelling, and --signal cancels no job")
