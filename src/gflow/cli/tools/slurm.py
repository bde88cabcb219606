"""gflow slurm: stand-ins for commands of Slurm; `gflow slurm-aliases` prints functions that call them."""

from __future__ import annotations

import os
from collections.abc import Callable

from gflow.cli.tools import slurm_listing
from gflow.cli.tools.slurm_words import Known, split
from gflow.errors import UsageError
from gflow.options import slurm

# Options of scancel, and the words for gcancel; None: the option does nothing here.
SCANCEL = Known(
    {"t": "state", "u": "user", "n": "name", "s": "signal", "A": "account", "f": "full", "b": "batch",
     "v": "verbose", "Q": "quiet"},
    flags=("me", "full", "batch", "verbose", "quiet", "ctld", "help"),
    values=("state", "user", "name", "jobname", "signal", "account"),
)  # fmt: skip
# Options that gcancel has too.
CANCELLED_BY = ("me", "help", "batch", "user", "name", "jobname", "signal", "account")
GCANCEL = {"jobname": "name", "account": "project"}
SINFO = Known(
    {"l": "long", "a": "all", "N": "Node", "e": "exact", "s": "summarize", "i": "iterate"},
    flags=("long", "all", "Node", "exact", "summarize", "help"),
    values=("iterate",),
)
# Variables of sbatch (SBATCH_…), and their options.
VARIABLES = {"TIMELIMIT": "time", "ACCOUNT": "account", "JOB_NAME": "job-name"}
# Fields of scontrol update, and the options of gjob update.
UPDATED = {"timelimit": "time", "name": "name", "jobname": "name", "account": "project", "comment": "comment"}
# Options of sbatch and srun whose values Slurm reads otherwise than gbatch.
READ_OTHERWISE = ("begin", "output", "error")
SRUN_IGNORED = ("mpi", "cpu-bind", "label", "unbuffered", "kill-on-bad-exit", "input", "overlap")


def run(words: list[str]) -> int:
    """Run one command of Slurm: `gflow slurm squeue --me`."""
    name = words[0] if words else ""
    if name not in COMMANDS:
        raise UsageError(f"gflow has no stand-in for {name!a:.60}", hint="there are: " + ", ".join(COMMANDS))
    return COMMANDS[name](words[1:])


def scancel(words: list[str]) -> int:
    from gflow.cli import gcancel

    given, jobs = split("scancel", words, SCANCEL)
    ours = list(map(slurm_listing.gflow_id, jobs))
    for name, value in given:
        if name == "state":
            ours.append("--state=" + slurm_listing.states_of(value))
        elif name in CANCELLED_BY:
            ours.append(f"--{GCANCEL.get(name, name)}" + (f"={value}" if value else ""))
    return gcancel.run(ours)


def sinfo(words: list[str]) -> int:
    from gflow.cli import ginfo

    given, rest = split("sinfo", words, SINFO)
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!a:.60}", hint="ginfo shows the GPUs of this machine")
    ours = [f"--{name}" for name, _ in given if name in ("long", "help")]
    return ginfo.run(ours + [word for name, value in given if name == "iterate" for word in
                             ("--watch", f"--interval={value}")])  # fmt: skip


def sbatch(words: list[str]) -> int:
    from gflow.cli import gbatch

    ours, command = _submission("sbatch", words)
    return gbatch.run(_from_environment() + ours + command)


def _from_environment() -> list[str]:
    """Options that variables of sbatch give. Those of the command line follow, and take precedence."""
    found = ((option, os.environ.get("SBATCH_" + name)) for name, option in VARIABLES.items())
    return [f"--{option}={value}" for option, value in found if value]


def srun(words: list[str]) -> int:
    """Run a command as a job in the foreground."""
    from gflow.cli import grun

    ours, command = _submission("srun", words)
    if any(word.startswith("--ntasks=") and word != "--ntasks=1" for word in ours):
        raise UsageError(
            "srun starts several tasks only inside of a job",
            hint="write a script with srun, and submit it: sbatch script.sh",
        )
    return grun.run(ours + command)


def _submission(program: str, words: list[str]) -> tuple[list[str], list[str]]:
    """The options for gbatch or grun, and the command. Letters mean what they mean in Slurm."""
    known = Known(slurm.SHORT | {"l": "label", "K": "kill-on-bad-exit", "u": "unbuffered", "i": "input"},
                  flags=(*slurm.FLAGS, "pty", "help", "label", "unbuffered", "kill-on-bad-exit", "overlap"),
                  values=None, until_word=True)  # fmt: skip
    given, command = split(program, words, known)
    ours = []
    for name, value in given:
        if program == "srun" and name in SRUN_IGNORED:
            continue
        if name == "dependency":
            value = ",".join(map(_dependency, value.split(",")))
        meant = slurm.translate(name, value) if name in READ_OTHERWISE else {name: value}
        ours += [f"--{option}={text}" if text else f"--{option}" for option, text in meant.items()]
    return ours, ["--", *command] if command else []


def _dependency(part: str) -> str:
    return ":".join(map(slurm_listing.gflow_id, part.split(":")))


def scontrol(words: list[str]) -> int:
    from gflow.cli import gjob

    match words:
        case ["-d" | "-dd" | "-o" | "--details" | "--oneliner", *rest]:
            return scontrol(rest)
        case ["show", "job" | "jobid", *jobs] if jobs:
            return gjob.run(["show", *map(_job, jobs)])
        case ["show", word] if word.lower().startswith(("job=", "jobid=")):
            return gjob.run(["show", _job(word)])
        case ["hold" | "release" as what, *jobs] if jobs:
            return gjob.run([what, *map(_job, jobs)])
        case ["update", *changes] if changes:
            return gjob.run(["update", *_changes(changes)])
        case ["show", "hostnames" | "hostname", *_]:
            print(os.uname().nodename)
            return 0
    raise UsageError(
        f"gflow does not translate scontrol {' '.join(words)!a:.60}",
        hint="it translates show job, show hostnames, hold, release and update; see also gjob redo",
    )


def _job(word: str) -> str:
    """The id in `42` or `JobId=42`."""
    return slurm_listing.gflow_id(word.rpartition("=")[2])


def _changes(words: list[str]) -> list[str]:
    """The words for gjob update: `JobId=42 TimeLimit=1:00:00`, `job 42 timelimit=60`."""
    if len(words) > 1 and words[0].lower() in ("job", "jobid"):
        words = [f"jobid={words[1]}", *words[2:]]
    jobs: list[str] = []
    options: list[str] = []
    for name, equals, value in (word.partition("=") for word in words):
        if name.lower() in ("job", "jobid"):
            jobs += map(slurm_listing.gflow_id, value.split(","))
        elif not equals or name.lower() not in UPDATED:
            raise UsageError(
                f"gflow does not translate {name!a:.60} of scontrol update", hint="see gjob update --help"
            )
        else:
            options.append(f"--{UPDATED[name.lower()]}={value}")
    if not jobs:
        raise UsageError("scontrol update names no job", hint="scontrol update jobid=42 timelimit=1:00:00")
    return options + jobs


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "sbatch": sbatch,
    "srun": srun,
    "squeue": slurm_listing.squeue,
    "scancel": scancel,
    "sacct": slurm_listing.sacct,
    "sinfo": sinfo,
    "scontrol": scontrol,
}
