"""gjob: one job, closely."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from gflow.cli import call
from gflow.errors import UsageError
from gflow.options import help
from gflow.options.parse import parse
from gflow.options.table import COMMON, JOB, JSON, Option

ABOUT = """Look at jobs and change them. A job is an id (42), a task of an array (42_3), @ for your
latest, @~1 for the one before it; several with commas.

commands:
  show      all about a job
  log       its output
  history   everything that happened to it, and who did it
  hold      keep waiting jobs from starting
  release   let held jobs go
  update    change what was asked for: any job option of gbatch
  wait      wait for a job and leave with its exit code"""
EXAMPLES = """gjob show 42
gjob log -f @
gjob hold 42,43
gjob release --at 20:00 42
gjob update 42 --gpus 2 --priority 50
gjob history @"""

LOG = (
    Option("follow", "flag", "log: print what comes, through all attempts, until the job ends", short="f"),
    Option("first", "count", "log: only the first N lines", metavar="N", low=0),
    Option("last", "count", "log: only the last N lines", short="l", metavar="N", low=0),
)
RELEASE = (Option("at", "text", "release: not before this time", metavar="TIME"),)
ALIASES = {"s": "show", "l": "log", "h": "hold", "r": "release", "u": "update"}


def run(words: list[str]) -> int:
    name = next((word for word in words if not word.startswith("-")), "")
    if not name:
        page = help.render("gjob COMMAND JOB [options]", ABOUT, (*LOG, *RELEASE, JSON, *COMMON), EXAMPLES)
        sys.stdout.write(page)
        return 0 if words else 2
    handler = COMMANDS.get(ALIASES.get(name, name))
    if handler is None:
        raise UsageError(f"gjob has no command {name!r}", hint="commands: " + ", ".join(COMMANDS))
    rest = list(words)
    rest.remove(name)
    return handler(rest)


def _parse(words: list[str], *options: Option) -> tuple[dict[str, Any], list[str]]:
    """Option values and the jobs that are meant."""
    values, rest = parse(words, (*options, JSON, *COMMON))
    jobs = [part for word in rest for part in word.split(",") if part]
    if not jobs:
        raise UsageError("which job?", hint="give an id, or @ for your latest job")
    return values, jobs


def _one(jobs: list[str]) -> str:
    if len(jobs) != 1:
        raise UsageError("one job, please")
    return jobs[0]


def _show(words: list[str]) -> int:
    values, jobs = _parse(words)
    return call.show(call.job_path(_one(jobs)), as_json="json" in values)


def _log(words: list[str]) -> int:
    from gflow.cli.logs import follow, print_lines

    values, jobs = _parse(words, *LOG)
    if "first" in values and (clash := values.keys() & {"last", "follow"}):
        raise UsageError(f"--first and --{min(clash)} do not go together")
    place = call.get(call.job_path(_one(jobs), "/log"))
    if "follow" in values:
        return follow(str(place["job_id"]), place["path"], values.get("last"))
    return print_lines(place["path"], values.get("first"), values.get("last"))


def _history(words: list[str]) -> int:
    values, jobs = _parse(words)
    return call.show(call.job_path(_one(jobs), "/history"), as_json="json" in values)


def _hold(words: list[str]) -> int:
    values, jobs = _parse(words)
    return _change("hold", values, {"jobs": jobs})


def _release(words: list[str]) -> int:
    values, jobs = _parse(words, *RELEASE)
    return _change("release", values, {"jobs": jobs, "at": values.get("at")})


def _update(words: list[str]) -> int:
    values, jobs = _parse(words, *JOB)
    names = {option.name for option in JOB}
    options = {name: value for name, value in values.items() if name in names}
    return _change("update", values, {"jobs": jobs, "options": options})


def _change(verb: str, values: dict[str, Any], body: dict[str, Any]) -> int:
    return call.show_answer("POST", f"/jobs/{verb}", json.dumps(body).encode(), as_json="json" in values)


def _wait(words: list[str]) -> int:
    from gflow.cli.waiting import exit_code_of, wait_for

    values, jobs = _parse(words)
    job = wait_for(_one(jobs))
    if "json" in values:
        print(json.dumps({"jobs": [job], "total": 1}))
    return exit_code_of(job)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "show": _show,
    "log": _log,
    "history": _history,
    "hold": _hold,
    "release": _release,
    "update": _update,
    "wait": _wait,
}
