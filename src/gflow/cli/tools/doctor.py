"""gflow doctor: check the machine, its GPUs, the Python environment, gflow, or the environment of a job."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Any

from gflow.client.doctor.examination import (
    NAMES,
    Examination,
    examine_job,
    examine_machine,
    measure_gpus,
    view,
)
from gflow.diagnosis.doctor.report import CheckResult, Level
from gflow.errors import UsageError, clean
from gflow.options.commands.doctor_options import OPTIONS
from gflow.options.parse import parse

ABOUT = """Check this machine: the driver, each GPU, whether PyTorch, CUDA, NCCL and cuDNN fit them, shared
memory, limits, disks, control groups, and gflow itself. Each warning and problem comes with its fix. The
exit code is 1 if there is a problem, else 0.

--gpu also measures the GPUs that are free, about 10 seconds each, and compares the figures with the
catalogue (gflow gpus). GPUs with jobs or processes are left out. --job checks the environment of one job:
Python, CUDA_VISIBLE_DEVICES, libraries, modules, folder and limits."""
EXAMPLES = """gflow doctor
gflow doctor --quiet              # only what needs attention
gflow doctor --job 42             # the environment of a job
gflow doctor --gpu                # measure all free GPUs
gflow doctor --gpu 0,1            # these GPUs, and the link between them
gflow doctor --json"""
WIDTH = 80
COLOURS = {Level.OK: "32", Level.WARNING: "33", Level.PROBLEM: "31"}


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow doctor [options] [--gpu [LIST]]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    found = _examine(values, rest)
    is_quiet = "quiet" in values
    if "json" in values:
        print(json.dumps(view(found, is_quiet=is_quiet)))
    else:
        sys.stdout.write(_page([one for one in found.results if one.level or not is_quiet], found))
    return 1 if found.worst is Level.PROBLEM else 0


def _examine(values: dict[str, Any], rest: list[str]) -> Examination:
    if "gpu" in values and "job" in values:
        raise UsageError("--gpu and --job do not go together", hint="gflow doctor --job 42")
    if "force" in values and "gpu" not in values:
        raise UsageError("--force needs --gpu", hint="gflow doctor --gpu --force")
    if len(rest) > int("gpu" in values):
        raise UsageError(f"unexpected argument {rest[-1]!a}", hint="gflow doctor --gpu 0,1")
    if "job" in values:
        from gflow.cli.common.rights import become_owner

        return examine_job(values["job"], become_owner)
    if "gpu" not in values:
        return examine_machine()
    wanted = _numbers(rest[0]) if rest else ()
    try:
        return measure_gpus(wanted, is_forced="force" in values, progress=_show_step)
    finally:
        _show_step("")


def _numbers(text: str) -> tuple[int, ...]:
    """The GPU numbers in `0,2`."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"GPUs are numbers, not {text!a:.60}", hint="gflow doctor --gpu 0,1") from None


def _show_step(text: str) -> None:
    """Show the present step in one line of a terminal; "" removes the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{f'measuring {text} …'[: WIDTH - 1] if text else ''}")
        sys.stderr.flush()


def _page(shown: list[CheckResult], found: Examination) -> str:
    lines = [part for one in shown for part in _lines(one)]
    counts = {level: sum(one.level is level for one in found.results) for level in Level}
    if found.self_test is not None and found.self_test.torch:
        lines.append(f"measured in {found.self_test.seconds:.0f} s with {found.self_test.torch}")
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
    mark = NAMES[one.level].ljust(len(indent))
    if sys.stdout.isatty():
        mark = f"\x1b[{COLOURS[one.level]}m{mark}\x1b[0m"
    return [mark + body[0], *(indent + line for line in body[1:])]
