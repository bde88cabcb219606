"""gflow doctor: check the machine, its GPUs, the Python environment and gflow."""

from __future__ import annotations

import json
import sys
import textwrap

from gflow.client.machine_facts import collect
from gflow.diagnosis.doctor.checks import check_all
from gflow.diagnosis.doctor.report import CheckResult, Level
from gflow.errors import UsageError, clean
from gflow.options.commands.doctor_options import OPTIONS
from gflow.options.parse import parse

ABOUT = """Check this machine: the driver, each GPU, whether PyTorch fits them, shared memory, limits, disks,
control groups, and gflow itself. Each warning and problem comes with its fix. The exit code is 1 if there
is a problem, else 0."""
EXAMPLES = """gflow doctor
gflow doctor --quiet              # only what needs attention
gflow doctor --json"""
WIDTH = 80
MARKS = {Level.OK: "ok", Level.WARNING: "warning", Level.PROBLEM: "problem"}
COLOURS = {Level.OK: "32", Level.WARNING: "33", Level.PROBLEM: "31"}


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow doctor [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!a}", hint="gflow doctor")
    results = check_all(collect())
    shown = [one for one in results if one.level or "quiet" not in values]
    if "json" in values:
        print(json.dumps({"checks": [_view(one) for one in shown], "worst": MARKS[_worst(results)]}))
    else:
        sys.stdout.write(_page(shown, results))
    return 1 if _worst(results) is Level.PROBLEM else 0


def _worst(results: list[CheckResult]) -> Level:
    return max((one.level for one in results), default=Level.OK)


def _view(one: CheckResult) -> dict[str, str | None]:
    return {"name": one.name, "level": MARKS[one.level], "text": one.text, "fix": one.fix or None}


def _page(shown: list[CheckResult], results: list[CheckResult]) -> str:
    lines = [part for one in shown for part in _lines(one)]
    counts = {level: sum(one.level is level for one in results) for level in Level}
    lines.append(
        f"{counts[Level.OK]} ok, {counts[Level.WARNING]} warning(s), {counts[Level.PROBLEM]} problem(s)"
    )
    return "\n".join(lines) + "\n"


def _lines(one: CheckResult) -> list[str]:
    """The result in lines of at most 80 columns, below its mark."""
    indent = " " * 9
    body = textwrap.wrap(clean(one.text), WIDTH - len(indent), break_on_hyphens=False)
    if one.fix:
        body += textwrap.wrap(f"fix: {clean(one.fix)}", WIDTH - len(indent), break_on_hyphens=False)
    mark = MARKS[one.level].ljust(len(indent))
    if sys.stdout.isatty():
        mark = f"\x1b[{COLOURS[one.level]}m{mark}\x1b[0m"
    return [mark + body[0], *(indent + line for line in body[1:])]
