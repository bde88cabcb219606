"""gflow status: everything at a glance."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.options.commands.status_options import OPTIONS
from gflow.options.job_options import refuse
from gflow.options.parse import parse

ABOUT = """Show everything on one screen: the daemon, the GPUs and who has them, the queue,
your jobs with their progress and next starts, and what needs attention: your
jobs that failed in the last day, GPUs that get no jobs, jobs that do not use
their GPUs, a full disk, a drained machine. Each has the command to type next.

The exit code is 0 also if something needs attention, and 3 without a daemon."""
EXAMPLES = """gflow status
gflow status --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow status [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if rest:
        refuse(f"unexpected argument {rest[0]!a}", "gjob show JOB shows a job")
    query = {} if "json" in values else hot_path.terminal()
    return http.show("/overview", as_json="json" in values, **query)
