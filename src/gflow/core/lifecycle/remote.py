"""Remote jobs: their status on other targets, and overflow to them.

A job for another target waits here for its parents and its begin time like any other. Then it is handed over.
Its attempt counts from that moment. It stays Queued, with the reason that the target gives, until the target
reports that it runs. It books no resources here; the target manages its own.

Overflow (`--overflow`): a new job is forecast once, and is handed over at once if it is not expected to start
here in time. A job that was expected to start and did not is handed over at its deadline. It leaves the queue
here before the target hears of it, so only one of the two runs it.
"""

from __future__ import annotations

import heapq

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Save
from gflow.core.events import RemoteStatus, Seen
from gflow.core.forecast.start_time import played_starts
from gflow.core.lifecycle.finish import begin_remote, find_remote_task
from gflow.core.model import Job, JobState, Moment
from gflow.core.reasons import parse
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.state import State


def seen(state: State, event: Seen, effects: list[Effect]) -> None:
    """Apply status reports of other targets. A report about an attempt that has ended here is ignored."""
    freed = False
    for status in event.statuses:
        if status.outputs:
            effects.append(AddAuditEntry(status.key, "outputs", status.outputs))
            continue
        job = state.jobs.get(status.key)
        if job is None and status.running:
            job = find_remote_task(state, status.key, status.attempt, event.at, effects)
        if job is not None and job.attempt == status.attempt and job.key in state.remote.jobs:
            freed |= _apply_status(state, job, status, event.at, effects)
    if freed:
        run_round(state, event.at, effects)


def _apply_status(state: State, job: Job, status: RemoteStatus, at: Moment, effects: list[Effect]) -> bool:
    """Apply one report; return whether it freed resources or a start reservation here (a race is decided)."""
    assert job.remote is not None
    freed = status.running and job.state is JobState.QUEUED and state.leave_race(job, at.boot)
    before = (job.state, job.reason, job.remote)
    job.remote = msgspec.structs.replace(
        job.remote,
        id=status.id or job.remote.id,
        nodes=status.nodes or job.remote.nodes,
        gpus=status.gpus or job.remote.gpus,
    )
    if job.state is JobState.QUEUED and status.running and not job.is_array:
        begin_remote(job, at)
        where = f" on {job.remote.nodes}" if job.remote.nodes else ""
        effects.append(AddAuditEntry(job.key, "started", f"attempt {job.attempt}{where}"))
    elif job.stopping is None:
        job.reason = parse(status.reason)
    if (job.state, job.reason, job.remote) != before:
        effects.append(Save(job))
    return freed


def decide_overflow(state: State, at: Moment, effects: list[Effect]) -> None:
    """Decide the overflow of jobs that are new in the queue, with one queue simulation for all."""
    if state.machine.is_drained:
        return
    waiting = [
        job for key in sorted(state.remote.undecided) if (job := state.jobs.get(key)) and job in state.ready
    ]
    # The cap of a group counts on every target.
    free = [job for job in waiting if not state.is_capped(job)]
    state.remote.undecided = {job.key for job in waiting if state.is_capped(job)}
    if not free:
        return
    starts = played_starts(state, at.boot)
    late = []
    for job in free:
        start_at, deadline = starts.get(job.key), job.overflows_at
        if deadline is not None and (start_at is None or start_at > deadline):
            when = "out of sight" if start_at is None else f"expected in {start_at - at.boot:.0f} s"
            late.append((job, f"its start here is {when}"))
    _overflow(state, late, at, effects)


def overflow_due(state: State, at: Moment, effects: list[Effect]) -> None:
    """Hand over jobs whose overflow deadline has passed. While drained or capped, decide again later."""
    late = []
    while (due := state.deadlines.next_overflow()) is not None and due <= at.boot:
        job = state.jobs[heapq.heappop(state.deadlines.overflows)[1]]
        if job not in state.ready:
            continue
        if state.machine.is_drained or state.is_capped(job):
            state.remote.undecided.add(job.key)
        else:
            late.append((job, f"it has not started here within {job.spec.patience_s} s"))
    _overflow(state, late, at, effects)


def _overflow(state: State, late: list[tuple[Job, str]], at: Moment, effects: list[Effect]) -> None:
    """Move jobs from the queue here to their overflow target. `late`: (job, reason)."""
    if not late:
        return
    for job, why in late:
        state.leave_queue(job)
        job.target = job.spec.overflow
        state.remote.pending.add(job.key)
        effects.append(AddAuditEntry(job.key, "overflows", f"to {job.target}: {why}"))
    run_round(state, at, effects)  # start reservations may be gone: other jobs may start
