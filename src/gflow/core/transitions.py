"""The job's state machine. Everything that decides whether a transition exists is in this file.

Theory of operation
-------------------
A job is submitted Queued. It stays Queued while anything keeps it from starting; what
that is, is a *reason*, never another state. Hold is the one state in which a job waits
because a person said so.

Starting is one transition, Queued -> Running, and it raises `attempt` by one. An attempt
starts at most once: the number is committed before anything is launched, and the runner
takes a file of that name exclusively before it runs the job.

Only the end of the processes ends a Running job. A cancel or a time limit therefore does
not change the state: it sets `stopping` to the state the job will end in, and the job
stays Running (shown as CG) until nothing of it lives. Then it takes that state.

A job that asked for retries or for being requeued goes from Running back to Queued when its
attempt has ended: the same job, its next attempt. One that does so five times within a
minute each is put on Hold instead.

An array is one job whose tasks wait inside its record. A task becomes a job of its own when
it starts. The array is Queued while tasks wait in it, Running while only started ones are
left, and final with the last of them.

Nothing leaves a final state. Doing a job again makes a new job.

Where a job of each state is found:
    Queued     `State.jobs`, and in exactly one of `State.waits` (parents), `State.later`
               (begin time) and `State.ready` (resources)
    Hold       `State.jobs`, and in `State.waits` while it has unmet parents
    Running    `State.jobs`; its GPUs in `State.holders`
    (final)    in the store only

Rules of this file: it knows no engine, no clock and no user. A new state needs rows here, a short name in
`model.SHORT`, a line in the checks of `store/schema`, and words in `text/queue` and gqueue's help.
"""

from __future__ import annotations

from typing import Final

from gflow.core.model import Job, JobState
from gflow.errors import TransitionError

# By names of their own: an attribute of an enum takes longer to find than most of what is done with it.
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
# What a job's story says of its end.
ENDED: Final[dict[JobState, str]] = {state: state.value.lower() for state in JobState}


def move(job: Job, to: JobState, reason: str = "") -> None:
    """Take one transition of the table; the only place where `job.state` changes."""
    if to not in TRANSITIONS[job.state]:
        raise TransitionError(f"job {job.label} cannot go from {job.state.value} to {to.value}")
    job.state = to
    job.reason = reason
