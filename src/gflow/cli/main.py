"""Dispatch a program name to its module, and report its errors."""

from __future__ import annotations

import sys

# Programs that parse times, which are read in the configured time zone.
READ_TIMES = ("gbatch", "grun")


def run(program: str, words: list[str], package: str = "gflow.cli") -> int:
    """Run one program; `gflow gqueue …`, `gflow queue …` and `gqueue …` are the same."""
    if words[:1] == ["--version"] or (program != "gbatch" and "--version" in words):
        return version(program)
    if words[:1] == ["completion"]:
        from gflow.cli.tools.completion import script

        return script(program, words[1:])
    if program == "gflow":
        return _umbrella(words)
    if program in READ_TIMES:
        from gflow.config import timezone

        timezone.use_configured()
    # The builtin: importlib costs a millisecond.
    code: int = __import__(f"{package}.{program.replace('-', '_')}", fromlist=("run",)).run(words)
    return code


def _umbrella(words: list[str]) -> int:
    from gflow.cli.registry import PROGRAMS, TOOLS
    from gflow.errors import UsageError, nearest

    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    name = words[0] if words else "--help"
    if name in ("--help", "-h", "help"):
        sys.stdout.write(_help())
        return 0
    if name == "__complete":
        from gflow.cli.tools.completion import complete

        return complete(words[1:])
    if name == "slurm":  # called by the functions of slurm-aliases
        return _run_stand_in(words[1:])
    if name in TOOLS:
        return _run(name, words[1:], "gflow.cli.tools")
    for candidate in (name, "g" + name):
        if candidate in PROGRAMS:
            return _run(candidate, words[1:], "gflow.cli")
    close = _elsewhere(name) or nearest(name, [*TOOLS, *PROGRAMS, *(program[1:] for program in PROGRAMS)])
    raise UsageError(
        f"gflow has no command {name!a}", hint=f"did you mean {close}?" if close else "see gflow --help"
    )


def _run_stand_in(words: list[str]) -> int:
    """Run a stand-in for a command of Slurm, and report errors under the name of that command."""
    stand_ins = __import__("gflow.cli.tools.slurm", fromlist=("run",))
    name = words[0] if words and words[0] in stand_ins.COMMANDS else "gflow slurm"
    try:
        code: int = stand_ins.run(words)
    except Exception as error:
        return fail(name, error, words[1:])
    return code


def _elsewhere(name: str) -> str:
    """The command of gflowd, gjob or another program that this name stands for; empty: there is none."""
    from gflow.cli.gflowd import COMMANDS as DAEMON
    from gflow.cli.gjob import COMMANDS as JOB
    from gflow.cli.registry import ELSEWHERE

    if name in DAEMON:
        return f"gflowd {name}"
    return f"gjob {name} JOB" if name in JOB else ELSEWHERE.get(name, "")


def _run(program: str, words: list[str], package: str = "gflow.cli") -> int:
    """Run the program and report errors under its own name, as if it had been called directly."""
    try:
        return run(program, words, package)
    except Exception as error:
        return fail(program, error, words)


def fail(program: str, error: Exception, words: list[str]) -> int:
    """Report an error and return its exit code. `gbatch` without a daemon offers to start one."""
    from gflow.cli.common.report import report
    from gflow.errors import Unreachable

    if isinstance(error, ConnectionError) and not isinstance(error, BrokenPipeError):
        from gflow.client import hot_path, no_daemon

        error = no_daemon.unreachable(hot_path.getenv)
    if program == "gbatch" and isinstance(error, Unreachable):
        from gflow.cli.common import report as offer

        if offer.is_answerable(words) and offer.is_start_wanted():
            return _run("gflowd", ["up"]) or _run(program, words)
    return report(program, error, words)


def _help() -> str:
    from gflow.cli.registry import PROGRAMS, TOOLS

    commands = "\n".join(f"  {name:<14} {about}" for name, about in {**PROGRAMS, **TOOLS}.items())
    return f"""usage: gflow COMMAND …

gflow schedules GPU jobs: submit commands; each starts when its GPUs are free.

start here:
  gflowd up                              start your daemon
  gbatch --gpus 1 python train.py        submit a job
  gqueue                                 show whether it runs, or why it waits
  gjob log -f @                          follow the output of your latest job
  gcancel @                              cancel it
  gflow status                           show everything on one screen

commands:
{commands}

Most are also programs of their own: `gqueue`, `gflow gqueue` and
`gflow queue` are the same. Each has --help with examples. For completion with
Tab, run eval "$(gflow completion bash)", or with zsh or fish.
"""


def version(program: str) -> int:
    from gflow import __version__

    print(f"{program} {__version__}")
    print(f"Python {sys.version.split()[0]} at {sys.executable}")
    print(f"installed in {__file__.removesuffix('/cli/main.py')}")
    return 0
