"""gcancel: cancel waiting and running jobs."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.options.commands.gcancel_options import OPTIONS
from gflow.options.job_options import SIGNALS, refuse
from gflow.options.parse import parse

ABOUT = """Cancel jobs. A running job gets TERM and, 30 seconds later, KILL, together with every
process that it started. Jobs that depend on it are cancelled too. Jobs are selected by id, by
filter options, or by both: then a job must match both."""
EXAMPLES = """gcancel 42
gcancel 42,43 45-50
gcancel 42_3 42_[10-20]          # tasks of an array
gcancel g116                     # all jobs of a sweep
gcancel --now @                  # my latest job
gcancel --state Queued --name 'exp-*'
gcancel --dry-run --all"""


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
        refuse(f"{signals[0]!a} is not a state", "-s is --state here; Slurm's -s is --signal")
    if "all" in jobs:
        refuse("'all' is not a job id", "gcancel --all cancels all your jobs")
    body = {
        "jobs": jobs,
        "now": "now" in values,
        "dry_run": "dry-run" in values,
        "all": "all" in values,
        **filters,
    }
    return http.show_answer("POST", "/jobs/cancel", hot_path.dumps(body).encode(), as_json="json" in values)
