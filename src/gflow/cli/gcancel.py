"""gcancel: cancel waiting and running jobs."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.options.commands.gcancel_options import OPTIONS
from gflow.options.job_options import SIGNALS, refuse
from gflow.options.parse import parse

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

ABOUT = """Cancel jobs. A running job gets TERM and, 30 seconds later, KILL, together with every
process that it started. Jobs that depend on it are cancelled too. Jobs are selected by id, by
filter options, or by both: then a job must match both."""
EXAMPLES = """gcancel 42
gcancel 42,43 45-50
gcancel 42_3 42_[10-20]          # tasks of an array
gcancel g116                     # all jobs of a sweep
gcancel --now @                  # my latest job
gcancel --state Queued --name 'exp-*'
gcancel --dry-run --all
gcancel --signal USR1 42         # the job goes on, unless the signal ends it"""

# What a cancel would do to a job, on a terminal.
VERDICTS = {"ok": "cancelled", "invalid": "has ended", "blocked": "cannot start"}


def run(words: list[str]) -> int:
    values, jobs = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gcancel [options] JOB…", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if "me" in values:
        from gflow.cli.common.listing import add_me

        add_me(values)
    filters = {
        plural: [part for part in values[name].split(",") if part]
        for name, plural in (
            ("name", "names"),
            ("state", "states"),
            ("project", "projects"),
            ("user", "users"),
        )
        if name in values
    }
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
    if "signal" in values:
        return _signal(values, {"jobs": jobs, "all": "all" in values, **filters})
    body = {
        "jobs": jobs,
        "now": "now" in values,
        "dry_run": "dry-run" in values,
        "all": "all" in values,
        **filters,
    }
    if body["dry_run"] and "json" not in values and sys.stdout.isatty():
        return _show_preview(hot_path.dumps(body).encode())
    return http.show_changes("/jobs/cancel", hot_path.dumps(body).encode(), as_json="json" in values)


def _show_preview(body: bytes) -> int:
    """Print what a cancel would do, as a table for a terminal."""
    import json
    import os

    from gflow.errors import clean
    from gflow.text.table import Sheet

    sheet = Sheet(("JOBID", "NAME", "USER", "STATE", "RESULT", "PARENTS"))
    jobs = json.loads(http.ask("POST", "/jobs/cancel", body, "application/json", {}))["jobs"]
    for job in jobs:
        parents = ",".join(map(str, job["parents"]))
        name, user = clean(job["name"]), clean(job["user"])
        sheet.add((str(job["id"]), name, user, job["state"], VERDICTS[job["verdict"]], parents))
    width = os.get_terminal_size(1).columns
    sys.stdout.write("".join(sheet.lines(width, [[1], [2, 5]])) if jobs else "No jobs match.\n")
    return 0


def _signal(values: dict[str, Any], selected: dict[str, Any]) -> int:
    """Send a signal to running jobs."""
    for name in ("now", "dry-run"):
        if name in values:
            refuse(f"--{name} is for cancelling, and --signal cancels no job")
    wanted = selected | {"signal": values["signal"], "batch": "batch" in values}
    body = hot_path.dumps(wanted).encode()
    return http.show_changes("/jobs/signal", body, as_json="json" in values)
