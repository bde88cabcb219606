"""gjob: one job, closely."""

from __future__ import annotations

import sys
from typing import Any

from gflow.cli import call
from gflow.errors import UsageError
from gflow.options import help
from gflow.options.parse import parse
from gflow.options.table import COMMON, JSON, Option

OPTIONS = (
    Option("follow", "flag", "log: print what comes, until the job ends", short="f"),
    Option("first", "count", "log: only the first N lines", metavar="N", low=0),
    Option("last", "count", "log: only the last N lines", metavar="N", low=0),
    JSON,
    *COMMON,
)
COMMANDS = {"show": "show", "s": "show", "log": "log", "l": "log"}
ABOUT = """Look at one job: `show` prints all about it, `log` its output.
A job is an id (42), or @ for your latest, @~1 for the one before it."""
EXAMPLES = """gjob show 42
gjob log -f @
gjob log --last 20 42"""


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values or not rest:
        sys.stdout.write(help.render("gjob show|log JOB [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0 if "help" in values else 2
    name, *jobs = rest
    if name not in COMMANDS:
        raise UsageError(f"gjob has no command {name!r}", hint="commands: show, log")
    if len(jobs) != 1:
        raise UsageError(f"gjob {name} takes one job", hint=f"gjob {name} 42")
    if COMMANDS[name] == "show":
        return call.show(call.job_path(jobs[0]), as_json="json" in values)
    return _log(jobs[0], values)


def _log(job: str, values: dict[str, Any]) -> int:
    from gflow.cli.logs import follow, print_lines

    place = call.get(call.job_path(job, "/log"))
    if "follow" in values:
        return follow(str(place["job_id"]), place["path"])
    return print_lines(place["path"], values.get("first"), values.get("last"))
