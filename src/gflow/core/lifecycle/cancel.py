"""Cancel and signal jobs, arrays and tasks; check that a user may act on a job."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Save, Stop, Warn
from gflow.core.events import Cancel, SendSignal, UserAction
from gflow.core.ids import JobKey, label, task_of
from gflow.core.lifecycle.finish import active_tasks, begin_remote, finish, split_remote_task
from gflow.core.lifecycle.staged_submit import arrive_first
from gflow.core.model import Job, JobState
from gflow.core.reasons import CANCELLED_BY_USER, NO_REASON, Reason, ReasonKind
from gflow.core.scheduling.scheduler import new_task, run_round
from gflow.core.state.state import State
from gflow.core.transitions import move
from gflow.errors import Forbidden, NotFound


def cancel(state: State, event: Cancel, effects: list[Effect]) -> None:
    """Cancel jobs, arrays, and tasks that have not left their array. Final jobs are ignored."""
    keys = check_cancel(state, event)
    release_claims(state, event, event.keys, effects)
    for key in keys:
        job = state.jobs.get(key)
        if job is not None:
            _cancel_one(state, job, event, effects)
        elif array := state.jobs.array_with(key):  # looked up here: an earlier key may have been its array
            _cancel_waiting_task(state, array, key, event, effects)
    run_round(state, event.at, effects)


def check_cancel(state: State, event: Cancel) -> list[JobKey]:
    """Return the keys of the active jobs; refuse if the user may not cancel one of them."""
    keys = [key for key in event.keys if state.jobs.is_active(key)]
    authorize_jobs(state, keys, event)
    return keys


def send_signal(state: State, event: SendSignal, effects: list[Effect]) -> None:
    """Send a signal to the jobs that run, here or on another target, and to the running tasks of arrays."""
    for job in authorize_jobs(state, filter(state.jobs.__contains__, event.keys), event):
        for run in active_tasks(state, job.key) if job.is_array else [job]:
            if run.state is JobState.RUNNING:
                effects += (
                    AddAuditEntry(run.key, "signal", event.name),
                    Warn(run.key, run.attempt, event.number),
                )


def release_claims(state: State, event: UserAction, keys: Iterable[JobKey], effects: list[Effect]) -> None:
    """Drop the claims on these jobs, because the claimed action follows. Arriving jobs arrive first."""
    if state.claimed:
        state.claimed.difference_update(keys)
    arrive_first(state, keys, event.at, effects)


def _reason_of(event: Cancel, job: Job) -> Reason:
    """The reason of a cancelled job. It names the user if that is not the owner."""
    if event.uid == job.uid or not event.user:
        return CANCELLED_BY_USER
    return Reason(ReasonKind.CANCELLED_BY_USER, event.user)


def _cancel_one(state: State, job: Job, event: Cancel, effects: list[Effect]) -> None:
    if job.is_array:
        _cancel_array(state, job, event, effects)
    elif job.state is not JobState.RUNNING and job.key not in state.remote.jobs:
        effects.append(AddAuditEntry(job.key, "cancel"))
        state.stop_waiting(job)
        finish(state, job, JobState.CANCELLED, _reason_of(event, job), event.at, effects)
    elif job.stopping is not JobState.CANCELLED or event.now:
        # Also if the job is already being stopped for its time limit: with --requeue it would come back. A
        # job that waits on another target ends when that target reports it, because it may have begun
        # there.
        if job.state is JobState.QUEUED:
            state.leave_race(job, event.at.boot)
            begin_remote(job, event.at)
        if job.stopping is not JobState.CANCELLED:
            # Replaces the reason of an earlier stop.
            job.reason = NO_REASON if event.uid == job.uid else _reason_of(event, job)
        job.stopping = JobState.CANCELLED
        job.stop_now = event.now
        state.running.note_stop(job)
        note = AddAuditEntry(job.key, "cancel", "at once" if event.now else "")
        effects += (Save(job), note, Stop(job.key, job.attempt, event.now))


def _cancel_array(state: State, array: Job, event: Cancel, effects: list[Effect]) -> None:
    """Start no more tasks of the array. It is Cancelled once its running tasks have ended."""
    effects.append(AddAuditEntry(array.key, "cancel"))
    if array.key in state.remote.jobs:
        _cancel_remote_array(state, array, event, effects)
        return
    state.stop_waiting(array)
    tasks = active_tasks(state, array.key)
    finish(state, array, JobState.CANCELLED, _reason_of(event, array), event.at, effects)
    for task in tasks:
        if not task.is_final:  # it may have depended on another task, and be cancelled already
            _cancel_one(state, task, event, effects)


def _cancel_remote_array(state: State, array: Job, event: Cancel, effects: list[Effect]) -> None:
    """Tell the target to cancel the tasks that wait there. It reports when no more of them can start."""
    if array.state is JobState.QUEUED:
        begin_remote(array, event.at)
    array.stopping, array.stop_now, array.reason = JobState.CANCELLED, event.now, _reason_of(event, array)
    effects += (Save(array), Stop(array.key, array.attempt, event.now))
    for task in active_tasks(state, array.key):
        _cancel_one(state, task, event, effects)


def _cancel_waiting_task(state: State, array: Job, key: JobKey, event: Cancel, effects: list[Effect]) -> None:
    """Split a task that has not started off its array, as a cancelled job."""
    if array.key in state.remote.jobs:
        _cancel_one(state, split_remote_task(state, array, key, event.at), event, effects)
        effects.append(Save(array))
        return
    effects.append(AddAuditEntry(key, "cancel"))
    task = split_task(state, array, key)
    if not array.progress or not array.progress.pending:
        state.stop_waiting(array)
        if array.state is JobState.HOLD:
            move(array, JobState.QUEUED)
        if array.started_at is None:
            array.attempt, (array.started_at, array.started_boot) = 1, event.at
        move(array, JobState.RUNNING)
    finish(state, task, JobState.CANCELLED, _reason_of(event, task), event.at, effects)


def split_task(state: State, array: Job, key: JobKey) -> Job:
    """Split one waiting task off its array; return it as a job of its own."""
    number = task_of(key)
    assert number is not None
    assert array.progress is not None
    rest = array.progress.pending.without(number)
    array.progress = msgspec.structs.replace(array.progress, pending=rest, active=array.progress.active + 1)
    return new_task(state, array, number)


def authorize_jobs(state: State, keys: Iterable[JobKey], action: UserAction) -> list[Job]:
    """Return the jobs, the array for a waiting task; raise Forbidden if one belongs to another user."""
    jobs = []
    for key in keys:
        job = state.jobs.get(key) or state.jobs.array_with(key)
        if job is None:
            raise NotFound(f"there is no active job {label(key)}")
        if action.uid not in (job.uid, 0) and not action.is_operator:
            raise Forbidden(f"job {label(key)} belongs to {job.user}")
        jobs.append(job)
    return jobs
