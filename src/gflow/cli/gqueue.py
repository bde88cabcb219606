"""gqueue: the jobs that wait and run."""

from __future__ import annotations

import sys

from gflow.cli import call
from gflow.options.listing import GQUEUE
from gflow.options.parse import parse

EXAMPLES = """gqueue
gqueue -s Running,Queued -f 'JOBID,NAME,ST,NODES,NODELIST(REASON)'
gqueue --all --json"""


def run(words: list[str]) -> int:
    values, rest = parse(words, GQUEUE)
    if "help" in values:
        from gflow.options import help

        about = "List jobs: those that run and those that wait, each with the reason why."
        sys.stdout.write(help.render("gqueue [options]", about, GQUEUE, EXAMPLES))
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
