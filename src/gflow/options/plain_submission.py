"""Command lines of gbatch that need no more than the option table, and the notes about a command line.

The daemon reads them for the thin clients; `gflow.cli.gbatch` reads all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflow.options.job_options import CAPTURE, JOB, PER_UNIT
from gflow.options.sweeps import note_range

# Characters that make a single argument a shell command line instead of a program name.
SHELL = frozenset(" \t\n;&|<>()$`\\\"'*?[]{}~#!=")
# Options left to `gflow.cli`. `begin` is one, because times depend on the configured time zone.
SLOW = frozenset({
    "help", "version", "wait", "json", "begin", "dry-run", "test-only", "venv", "conda-env", "fit",
    "gpus-per-task", "wrap", "quiet", "ignored", *PER_UNIT, *[option.name for option in CAPTURE],
})  # fmt: skip
JOB_NAMES = frozenset(option.name for option in JOB)


def absolute(path: str, folder: str) -> str:
    """A path from a folder, in which `..` stays: the folder before it may be a link."""
    return path if path.startswith("/") else folder.rstrip("/") + "/" + path.removeprefix("./")


def letter_note(values: Mapping[str, Any], words: list[str]) -> str:
    """A note that -n with a number names the job: in Slurm it is the number of tasks."""
    name = values.get("name", "")
    if not name.isdigit() or not ("-n" in words or "-n" + name in words):
        return ""
    return f"gbatch: the job is called {name}: -n is --name here; Slurm's -n is --ntasks\n"


def terminal_notes(values: Mapping[str, Any], command: list[str], params: tuple[Any, ...]) -> str:
    """Notes for a terminal: --gpus after the command is passed to it, a parameter that looks like a range.

    `values`: the options of the job, also of its script. `params`: the value of --param.
    """
    note = note_range(params)
    return _note_gpus(values, command) + (f"gbatch: {note}\n" if note else "")


def _note_gpus(values: Mapping[str, Any], command: list[str]) -> str:
    for at, word in enumerate(command):
        if word.startswith("--gpus") and word[6:7] in ("", "="):
            if values.keys() & {"gpus", "shape", "race"}:
                return ""
            given = word if word[6:] else " ".join(command[at : at + 2])
            program = command[0].rpartition("/")[2]
            text = f"{given} goes to {program}; the job asks for no GPU. Put options before the command."
            return f"gbatch: {text}\n"
    return ""
