"""gqueue: the jobs that wait and run."""

from __future__ import annotations

import sys

from gflow.cli import call
from gflow.options import help
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

OPTIONS = (
    Option("all", "flag", "finished jobs too", short="a"),
    Option("states", "text", "only these states: PD, Running, …", short="s", metavar="LIST"),
    Option("jobs", "text", "only these jobs", short="j", aliases=("job",), metavar="LIST"),
    Option("user", "text", "only these people's jobs", short="u", aliases=("users",), metavar="LIST"),
    Option(
        "format", "text", "columns, e.g. 'JOBID,NAME,ST,NODES,NODELIST(REASON)'", short="f", metavar="COLS"
    ),
    Option("limit", "count", "at most N, the newest; 0: all", short="n", metavar="N", low=0),
    JSON,
    *COMMON,
)
EXAMPLES = """gqueue
gqueue -s Running,Queued -f 'JOBID,NAME,ST,NODES,NODELIST(REASON)'
gqueue --all --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        about = "List jobs: those that run and those that wait, each with the reason why."
        sys.stdout.write(help.render("gqueue [options]", about, OPTIONS, EXAMPLES))
        return 0
    if rest:
        values["jobs"] = ",".join([*filter(None, [values.get("jobs")]), *rest])
    return call.show(
        "/jobs",
        as_json="json" in values,
        all="1" if "all" in values else "",
        states=values.get("states", ""),
        jobs=values.get("jobs", ""),
        users=values.get("user", ""),
        format=values.get("format", ""),
        limit=str(values.get("limit", "")),
    )
