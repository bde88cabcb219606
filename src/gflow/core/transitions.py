"""The job state machine: the states and the table of transitions between them.

Theory of operation
-------------------
A job is submitted Queued. It stays Queued while anything keeps it from starting; the cause is a
*reason*, not another state. Hold is the only other waiting state: the user held the job.

A start is one transition, Queued -> Running, and increments `attempt`. An attempt starts at most once:
its number is committed before anything is launched, and the target creates a run record of that name
exclusively before it runs the job.

Only the end of its processes ends a Running job. A cancel or a time limit therefore does not change the
state. It sets `stopping` to the state in which the job will end, and the job stays Running (shown as CG)
until all of its processes have ended.

A job that asked for retries or requeueing returns from Running to Queued when its attempt has ended:
the same job, its next attempt. A job that is requeued after five attempts in a row that each ran for less
than a minute is put on Hold instead.

An array is one job whose tasks wait inside its record. A task becomes a job of its own when it starts.
The array is Queued while tasks wait in it, Running while only started tasks are left, and final with the
last of them.

No transition leaves a final state. Redoing a job makes a new job.

Where a job of each state is found:
    Queued     `State.jobs`, and exactly one of `dependencies.waits` (parents), `deadlines.later` (begin time
               or retry delay), `ready` (resources), `remote.pending` (about to be handed over),
               `remote.jobs` (waits on another target) and `arriving` (not yet put into one of the others).
               A job that races here is in `ready` too.
    Hold       `State.jobs`, and `dependencies.waits` while it has unmet parents
    Running    `State.jobs`; its GPUs in `machine.holders`, or its key in `remote.jobs`
    (final)    in the store only

This module depends on no engine, clock or user. `gflow.job_states` declares the states; the recipe for a
new one is in CONTRIBUTING.md.
"""

from __future__ import annotations

from typing import Final

from gflow.core.model import FINAL, Job, JobState
from gflow.core.reasons import NO_REASON, Reason
from gflow.errors import TransitionError

# Module constants, because this is a hot path: the attribute lookup on an enum class takes 20 times as long,
# whether the engine is compiled or not.
QUEUED: Final = JobState.QUEUED
HOLD: Final = JobState.HOLD
RUNNING: Final = JobState.RUNNING
FINISHED: Final = JobState.FINISHED
FAILED: Final = JobState.FAILED
CANCELLED: Final = JobState.CANCELLED
TIMEOUT: Final = JobState.TIMEOUT

TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    QUEUED: frozenset({RUNNING, HOLD, CANCELLED}),
    HOLD: frozenset({QUEUED, CANCELLED}),
    RUNNING: frozenset({FINISHED, FAILED, CANCELLED, TIMEOUT, QUEUED, HOLD}),
    FINISHED: frozenset(),
    FAILED: frozenset(),
    CANCELLED: frozenset(),
    TIMEOUT: frozenset(),
}
# Audit log entry for the end of a job.
ENDED: Final[dict[JobState, str]] = {state: state.row.entry for state in JobState if state in FINAL}


def move(job: Job, to: JobState, reason: Reason = NO_REASON) -> None:
    """Take one transition. The only place that changes `job.state`; raises if the table does not allow it."""
    if to not in TRANSITIONS[job.state]:
        raise TransitionError(f"job {job.label} cannot go from {job.state.value} to {to.value}")
    job.state = to
    job.reason = reason
