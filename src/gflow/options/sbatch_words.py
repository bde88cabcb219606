"""Words for sbatch: options of Slurm as the user wrote them, `--gpus=4`, which a cluster gets unchanged.

A word may stand for options of gflow, which have its meaning on one machine. If the user gives one of those
to gflow, later or with precedence, it replaces the word. Otherwise the word replaces them on a cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

_GPUS = ("gpus", "gpu-type")
# Options of sbatch that gflow has too, or translates, and the options of gflow that replace them.
STANDS_FOR: dict[str, tuple[str, ...]] = {
    "gpus": _GPUS,
    "gpus-per-node": _GPUS,
    "gpus-per-socket": _GPUS,
    "gpus-per-task": (*_GPUS, "gpus-per-task"),
    "gres": _GPUS,
    "nodes": ("nodes",),
    "ntasks": ("ntasks-per-node",),
    "ntasks-per-node": ("ntasks-per-node",),
    "cpus-per-task": ("cpus",),
    "cpus-per-gpu": ("cpus",),
    "mem": ("memory",),
    "mem-per-cpu": ("memory",),
    "mem-per-gpu": ("memory",),
    "time": ("time",),
    "nice": ("priority",),
    "exclusive": ("exclusive",),
    "signal": ("signal",),
    "mail-user": ("notify-email",),
    "mail-type": ("notify-on",),
}
# Variables of sbatch (SBATCH_…) whose names differ from their options, and options whose names differ here.
_VARIABLES = {"TIMELIMIT": "time", "MEM_PER_NODE": "mem", "WAIT4SWITCH": "switches", "REQ_SWITCH": "switches"}
_SAME = {"account": "project", "job-name": "name"}
# Those of them that gflow does not translate: on one machine they have no effect.
ONLY_THERE = frozenset({"gpus-per-socket"})


def word_of(name: str, value: Any) -> str:
    """The word of an option: `--exclude=n1`, or `--contiguous` for a flag."""
    return f"--{name}" if value is True else f"--{name}={value}"


def name_of(word: str) -> str:
    return word.partition("=")[0].removeprefix("--")


def meaning_of(word: str) -> tuple[str, ...]:
    """The options of gflow that a word stands for; empty: gflow has none."""
    name, _, value = word.partition("=")
    if name == "--gres" and not any(part.startswith("gpu") for part in value.split(",")):
        return ()
    return STANDS_FOR.get(name.removeprefix("--"), ())


def meanings_of(words: Iterable[str]) -> set[str]:
    return {name for word in words for name in meaning_of(word)}


def without_replaced(words: Iterable[str], given: Collection[str]) -> tuple[str, ...]:
    """The words that none of these options of gflow replaces."""
    return tuple([word for word in words if not any(name in given for name in meaning_of(word))])


def is_local(word: str) -> bool:
    """Whether gflow translates the word for one machine."""
    return bool(meaning_of(word)) and name_of(word) not in ONLY_THERE


def merge_words(under: dict[str, Any], over: dict[str, Any]) -> tuple[str, ...]:
    """The words of two sets of options, of which `over` takes precedence."""
    words: tuple[str, ...] = tuple(under.get("slurm", ()))
    further: tuple[str, ...] = tuple(over.get("slurm", ()))
    names = set(map(name_of, further))
    kept = [word for word in without_replaced(words, over) if name_of(word) not in names]
    if len(kept) < len(words) and "nodes" in over and "nodes" not in names:
        # One node is the default of gflow, but not of a job with other words.
        kept.append(word_of("nodes", over["nodes"]))
    return (*kept, *further)


def overridden_variables(environ: Iterable[str], given: dict[str, Any]) -> list[str]:
    """The variables of sbatch (SBATCH_…) that options of the command line override."""
    names = set(map(name_of, given.get("slurm", ()))) | given.keys()
    found = []
    for variable in environ:
        if variable.startswith("SBATCH_"):
            short = variable.removeprefix("SBATCH_")
            option = _VARIABLES.get(short) or short.lower().replace("_", "-")
            if names & {option, _SAME.get(option, option), *STANDS_FOR.get(option, ())}:
                found.append(variable)
    return found
