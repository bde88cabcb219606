"""The words of the command line for what the engine says in data: hints, alternatives, ways out of a blocker.

The engine names fields and values (`gflow.errors.Hint`). The API sends these words too, because clients of
earlier releases print its hints as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from gflow.core.forecast.explain import Blocker
from gflow.core.model import Job, JobState
from gflow.core.state.machine import RESTRICTED
from gflow.errors import GflowError
from gflow.options.job_options import JOB

# Field of a spec -> the option that fills it.
FIELDS = {option.field: option.name for option in JOB}
# The hints of the engine, by key.
HINTS = {
    "list_jobs": "gqueue -a lists all jobs, also those that have ended",
    "show_array": "gjob show {array} says which tasks the array has",
    "list_gpus": "see what there is with ginfo",
    "queue_impossible_gpus": "see what there is with ginfo; --allow-unsatisfiable queues it anyway",
    "queue_impossible": "see what there is with gflowd status; --allow-unsatisfiable queues it anyway",
    "queue_over_quota": "see gctl quota list; --allow-unsatisfiable queues it anyway",
    "queue_broken": "--depends-on-end starts it after any end; gjob redo {job} --cascade repeats that job",
    "redo_broken": "--clear-deps does it without; --no-auto-cancel queues it anyway",
    "job_ids": ("jobs are named 42, 42_3, 5-9, g42 (a group) or @; by name: gqueue -N NAME, gcancel -n NAME"),
    "share_parents": (
        "let one job wait for all parents (gbatch --depends-on … true), and the others for that one"
    ),
    "name": "see --name",
    "hold_first": "first: gjob hold {job}",
    "take_back": "take it back first, if it still waits: gjob hold {job}",
    "ask_less_time": "ask for less time, or ask an operator: see gctl reserve list --timeline",
    "show_timeline": "gctl reserve list --timeline",
    "list_reservations": "see gctl reserve list",
    "reserve_later": "gctl reserve create --start 14:00 --duration 2h …",
    "list_quotas": "see gctl quota list",
    "override_quota": "change it there, then gflowd restart; or say another with gctl quota set",
}


def spell_hint(error: GflowError) -> str:
    """The hint of an error; empty: it has none."""
    return HINTS[error.advice.key].format_map(error.advice.values) if error.advice else error.hint


def spell_change(change: Mapping[str, int | str]) -> str:
    """The options that give these fields of a spec other values: `--nodes 2 --gpus 4`."""
    return " ".join(_spell_field(field, value) for field, value in change.items())


def _spell_field(field: str, value: int | str) -> str:
    option = f"--{FIELDS[field]}"
    if value == "":
        return f"without {option}"
    if field == "time_limit_s":
        return f"{option} {int(value) // 60}"
    return f"{option} {value}M" if field == "memory_mib" else f"{option} {value}"


def spell_blockers(job: Job, blockers: list[Blocker]) -> list[Blocker]:
    """The blockers of a job, with the commands that remove them: of a hold, of restricted GPUs."""
    is_held = job.state is JobState.HOLD
    return [_spell_blocker(job, why, is_hold=is_held and not place) for place, why in enumerate(blockers)]


def _spell_blocker(job: Job, why: Blocker, *, is_hold: bool) -> Blocker:
    if is_hold:
        return Blocker(why.code, f"gjob release {job.label} lets it go on")
    if why.code == RESTRICTED:
        return Blocker(why.code, f"{why.detail}: gctl set-gpus")
    return why
