"""gstats: statistics of jobs, by user and project."""

from __future__ import annotations

import sys

from gflow.cli.common.listing import since_of
from gflow.client import hot_path, http
from gflow.options.commands.gstats_options import OPTIONS
from gflow.options.job_options import refuse
from gflow.options.parse import output_of, parse

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gstats [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if rest:
        refuse(f"unexpected argument {rest[0]!a}", "gstats -u NAME shows the jobs of a user")
    if "me" in values and values.keys() & {"user", "all-users"}:
        refuse("--me cannot be combined with --user or --all-users")
    if "user" in values and "all-users" in values:
        refuse("--user or --all-users, not both")
    _check_kinds(values)
    output = output_of(values, OPTIONS)
    query = {"form": output, "user": values.get("user", "")}
    if "all-users" in values:
        query["all"] = "1"
    if "predictions" in values:
        query["predictions"] = "1"
    if "since" in values:
        query["since"] = since_of(values["since"])
    if "html" in values:
        from gflow.cli.common.report_file import write_report

        return write_report(values["html"], query)
    if output == "table":
        query |= hot_path.terminal()
    path = "/stats/days" if "chart" in values else "/stats"
    accept = "application/json" if output == "json" else "text/plain"
    content = http.ask("GET", path, b"", accept, query)
    hot_path.write(1, http.json_line(content) if output == "json" else content)
    return 0


def _check_kinds(values: dict[str, Any]) -> None:
    """Refuse options that ask for several kinds of output."""
    kinds = [f"--{name}" for name in ("chart", "html", "predictions") if name in values]
    if len(kinds) > 1:
        refuse(f"{kinds[0]} or {kinds[1]}, not both")
    if "html" in values and values.keys() & {"json", "output"}:
        refuse("--html writes a page and has no other format", "gstats --chart --json prints its data")


ABOUT = """Show statistics of jobs: how many, how they ended, how long they waited and ran, GPU-hours, and the
peak number of GPUs in use; by user and by project. --chart and --html show
usage over time: GPU-hours per day, efficiency (how busy the GPUs were while
jobs had them) and waits.

Jobs on simulated GPUs are counted only if all GPUs are simulated; the output then says so."""
EXAMPLES = """gstats
gstats --all-users --since 7d
gstats --chart --all-users --since 30d
gstats --html report.html --all-users --since 30d
gstats --predictions --since 30d
gstats -u ann --since 2026-12-01 -o csv"""
