"""What people may do to jobs that wait or run: cancel, hold, release."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Recall, Save, Stop
from gflow.core.events import Cancel, Hold, Release, UserAction
from gflow.core.ids import JobKey, label, task_of
from gflow.core.lifecycle.finish import active_tasks, begin, finish, split_off
from gflow.core.lifecycle.staged_submit import arrive_first
from gflow.core.model import Job, JobState, Moment
from gflow.core.scheduling.scheduler import new_task, run_round
from gflow.core.state.queue_index import Group
from gflow.core.state.state import State
from gflow.core.transitions import move
from gflow.errors import Forbidden, NotFound, Refused

# ---------------------------------------------------------------- cancel


def cancel(state: State, event: Cancel, effects: list[Effect]) -> None:
    """Cancel jobs, arrays, and tasks that are still part of their array. Final ones are left alone."""
    keys = check_cancel(state, event)
    take_up(state, event, event.keys, effects)
    for key in keys:
        job = state.jobs.get(key)
        if job is not None:
            _cancel_one(state, job, event, effects)
        elif array := state.array_with(key):  # asked again: an earlier key may have been its array
            _cancel_waiting_task(state, array, key, event, effects)
    run_round(state, event.at, effects)


def check_cancel(state: State, event: Cancel) -> list[JobKey]:
    """Those of the jobs that are active, or a refusal."""
    keys = [key for key in event.keys if state.is_active(key)]
    owned(state, keys, event)
    return keys


def take_up(state: State, event: UserAction, keys: Iterable[JobKey], effects: list[Effect]) -> None:
    """What was judged is done now: release the claims on the jobs, and let them arrive first if they do."""
    if state.claimed:
        state.claimed.difference_update(keys)
    arrive_first(state, keys, event.at, effects)


def _cancel_one(state: State, job: Job, event: Cancel, effects: list[Effect]) -> None:
    if job.is_array:
        _cancel_array(state, job, event, effects)
    elif job.state is not JobState.RUNNING and job.key not in state.abroad:
        effects.append(AddAuditEntry(job.key, "cancel"))
        state.stop_waiting(job)
        finish(state, job, JobState.CANCELLED, "CancelledByUser", event.at, effects)
    elif job.stopping is not JobState.CANCELLED or event.now:
        # Also when it is over its limit already: with --requeue it would come back. What waits elsewhere is
        # over only when that target says so: it may have begun.
        if job.state is JobState.QUEUED:
            state.leave_race(job, event.at.boot)
            begin(job, event.at)
        if job.stopping is not JobState.CANCELLED:
            job.reason = ""  # why it was being stopped until now, if it was
        job.stopping = JobState.CANCELLED
        job.stop_now = event.now
        state.note_stop(job)
        note = AddAuditEntry(job.key, "cancel", "at once" if event.now else "")
        effects += (Save(job), note, Stop(job.key, job.attempt, event.now))


def _cancel_array(state: State, array: Job, event: Cancel, effects: list[Effect]) -> None:
    """Nothing more of it starts; it is Cancelled when its running tasks are gone."""
    effects.append(AddAuditEntry(array.key, "cancel"))
    if array.key in state.abroad:
        _cancel_abroad(state, array, event, effects)
        return
    state.stop_waiting(array)
    tasks = active_tasks(state, array.key)
    finish(state, array, JobState.CANCELLED, "CancelledByUser", event.at, effects)
    for task in tasks:
        if not task.is_final:  # it may have waited for another of them
            _cancel_one(state, task, event, effects)


def _cancel_abroad(state: State, array: Job, event: Cancel, effects: list[Effect]) -> None:
    """The target that has it stops what waits of it, and says when nothing more can start."""
    if array.state is JobState.QUEUED:
        begin(array, event.at)
    array.stopping, array.stop_now, array.reason = JobState.CANCELLED, event.now, "CancelledByUser"
    effects += (Save(array), Stop(array.key, array.attempt, event.now))
    for task in active_tasks(state, array.key):
        _cancel_one(state, task, event, effects)


def _cancel_waiting_task(state: State, array: Job, key: JobKey, event: Cancel, effects: list[Effect]) -> None:
    """A task that has not started becomes a job of its own, cancelled."""
    if array.key in state.abroad:
        _cancel_one(state, split_off(state, array, key, event.at), event, effects)
        effects.append(Save(array))
        return
    effects.append(AddAuditEntry(key, "cancel"))
    task = take_task(state, array, key)
    if not array.progress or not array.progress.pending:
        state.stop_waiting(array)
        if array.state is JobState.HOLD:
            move(array, JobState.QUEUED)
        if array.started_at is None:
            array.attempt, (array.started_at, array.started_boot) = 1, event.at
        move(array, JobState.RUNNING)
    finish(state, task, JobState.CANCELLED, "CancelledByUser", event.at, effects)


def take_task(state: State, array: Job, key: JobKey) -> Job:
    """Split one waiting task off its array."""
    number = task_of(key)
    assert number is not None
    assert array.progress is not None
    rest = array.progress.pending.without(number)
    array.progress = msgspec.structs.replace(array.progress, pending=rest, active=array.progress.active + 1)
    return new_task(state, array, number)


def owned(state: State, keys: Iterable[JobKey], deed: UserAction) -> list[Job]:
    """These jobs (a waiting task stands for its array), or a refusal if one is somebody else's."""
    jobs = []
    for key in keys:
        job = state.jobs.get(key) or state.array_with(key)
        if job is None:
            raise NotFound(f"there is no active job {label(key)}")
        if deed.uid not in (job.uid, 0) and not deed.governs:
            raise Forbidden(f"job {label(key)} belongs to {job.user}")
        jobs.append(job)
    return jobs


# ---------------------------------------------------------------- hold and release


def whole(state: State, keys: Iterable[JobKey], deed: UserAction) -> list[Job]:
    """These jobs, none of which may be a task that still waits in its array."""
    for key in keys:
        if key not in state.jobs and (array := state.array_with(key)):
            raise Refused(f"task {label(key)} waits in its array", hint=f"name the array: {array.label}")
    return owned(state, keys, deed)


def hold(state: State, event: Hold, effects: list[Effect]) -> None:
    jobs = check_hold(state, event)
    take_up(state, event, event.keys, effects)
    jobs = [job for job in jobs if not job.is_final]
    freed = bool({promise.key for promise in state.start_reservations} & {job.key for job in jobs})
    for job in jobs:
        if job.key in state.abroad:
            freed |= state.leave_race(job, event.at.boot)
            _hold_abroad(job, effects)
        elif job.state is JobState.QUEUED:
            state.leave_queue(job)
            move(job, JobState.HOLD, "JobHeldUser")
            effects += (Save(job), AddAuditEntry(job.key, "held"))
    if freed:
        run_round(state, event.at, effects)  # nobody has to wait for that one any more


def check_hold(state: State, event: Hold) -> list[Job]:
    """The jobs, or a refusal."""
    jobs = whole(state, event.keys, event)
    for job in jobs:
        if job.state is JobState.RUNNING:
            raise Refused(f"job {job.label} is running, and only a waiting job can be held")
    return jobs


def _hold_abroad(job: Job, effects: list[Effect]) -> None:
    """It is taken back, and held when it is here; if it has begun there meanwhile, it runs."""
    assert job.abroad is not None
    job.abroad = msgspec.structs.replace(job.abroad, hold=True)
    effects += (Save(job), AddAuditEntry(job.key, "held"), Recall(job.key, job.attempt))


def release(state: State, event: Release, effects: list[Effect]) -> None:
    jobs = check_release(state, event)
    take_up(state, event, event.keys, effects)
    for job in jobs:
        if job.is_final:
            continue
        if job.abroad is not None:
            if job.abroad.hold and job.spec.races_here:
                state.ready.add(job)
            job.abroad = msgspec.structs.replace(job.abroad, hold=False)
            effects += (Save(job), AddAuditEntry(job.key, "released"))
            continue
        if event.begin_at is not None:
            state.leave_queue(job)
            job.spec = msgspec.structs.replace(job.spec, begin_at=event.begin_at)
            job.pause(0, event.at)
        elif job.state is not JobState.HOLD:
            continue
        if job.state is JobState.HOLD:
            move(job, JobState.QUEUED)
        state.admit(job, event.at)
        effects += (Save(job), AddAuditEntry(job.key, "released"))
    run_round(state, event.at, effects)


def check_release(state: State, event: Release) -> list[Job]:
    """The jobs, or a refusal."""
    jobs = whole(state, event.keys, event)
    for job in jobs:
        if job.state is JobState.RUNNING:
            raise Refused(f"job {job.label} is running, and only a held job can be released")
        if job.key in state.abroad and event.begin_at is not None:
            raise Refused(f"{job.target} has job {job.label} already", hint=f"first: gjob hold {job.label}")
    return jobs


def admit_due(state: State, at: Moment, effects: list[Effect]) -> set[Group | None]:
    """Put jobs whose begin time has come, or whose pause is over, into the queue; the groups they joined."""
    alarms, due = state.alarms, set[Group | None]()
    while (begin := alarms.next_begin()) is not None and begin <= at.wall:
        due.add(_admit_one(state, heapq.heappop(alarms.begins)[1], at, effects))
    while (retry := alarms.next_retry()) is not None and retry <= at.boot:
        due.add(_admit_one(state, heapq.heappop(alarms.retries)[1], at, effects))
    return due


def _admit_one(state: State, key: JobKey, at: Moment, effects: list[Effect]) -> Group | None:
    state.later.discard(key)
    effects.append(Save(state.jobs[key]))
    return state.admit(state.jobs[key], at)
