"""How a run ended: by its own word, then by Slurm's. Pure, but for the question that is handed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gflow.targets.ends import End
from gflow.targets.slurm.desk import Exit
from gflow.targets.slurm.parsing import Verdict

# What Slurm decided, whatever code the job left with.
PROBLEMS = {
    "TIMEOUT": "TimeLimit",
    "DEADLINE": "TimeLimit",
    "CANCELLED": "CancelledThere",
    "REVOKED": "CancelledThere",
    "NODE_FAIL": "NodeFail",
    "BOOT_FAIL": "NodeFail",
    "PREEMPTED": "Preempted",
    "OUT_OF_MEMORY": "OutOfMemory: more than Slurm gave it; ask for more with --memory",
}
# Slurm's exit code of a job whose log could not be made.
NO_LOG = 53


class Standing(NamedTuple):
    """What is known of a run of which Slurm says that it is over."""

    state: str
    began: bool
    record: Exit | None
    # Whether the job's own word has been waited for long enough.
    waited: bool
    log: str


def end_of(standing: Standing, ask: Callable[[], Verdict | None]) -> End | None:
    """The end; None: not known yet. `ask`: what scontrol or sacct say, which costs a question."""
    state, record = standing.state, standing.record
    if state in PROBLEMS:
        return End(record.code if record else None, None, PROBLEMS[state])
    if record is not None and record.code is not None:
        return End(record.code, None, "")
    if record is not None:  # Slurm began it a second time
        return End(None, None, "Preempted")
    if not standing.waited:
        return None
    verdict = ask()
    if verdict is None:
        return None
    if verdict.signal == NO_LOG and not standing.began:
        return End(None, None, f"StartFailed: no log at {standing.log}")
    if not standing.began:
        return End(None, None, f"StartFailed: Slurm says {verdict.state} before it began")
    if verdict.signal:
        return End(None, verdict.signal, "")
    return End(verdict.code, None, "")
