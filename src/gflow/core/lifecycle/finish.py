"""The end of an attempt: requeue, retry or final state, and its consequences for children and arrays.

The exit of the processes ends an attempt, whatever caused it. `exited` determines the state, requeues the
job if it asked for that, and otherwise makes it final. The end of a job releases or cancels the jobs that
depend on it. The last task of an array ends the array.
"""

from __future__ import annotations

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Forget, Ran, Save
from gflow.core.events import Exited
from gflow.core.ids import TASK_MASK, JobKey, job_key, task_of
from gflow.core.lifecycle.group_end import note_end
from gflow.core.lifecycle.machine_events import stall
from gflow.core.model import LOCAL, ArrayProgress, Job, JobState, Moment, RemoteState
from gflow.core.reasons import (
    CANCELLED_BY_USER,
    DEFERRED,
    HELD,
    LEASED,
    LOST,
    NO_REASON,
    PREEMPTED,
    REQUEUED,
    RETRY,
    TIME_LIMIT,
    Reason,
    ReasonKind,
)
from gflow.core.scheduling.scheduler import new_task, run_round, start_among, start_first
from gflow.core.state.state import State
from gflow.core.transitions import CANCELLED, ENDED, FAILED, FINISHED, HOLD, QUEUED, RUNNING, TIMEOUT, move

# Requeue loop: a job is held after QUICK_ENDS requeued attempts in a row that each ran for less than QUICK_S.
QUICK_S = 60.0
QUICK_ENDS = 5
# Exit code with which a job asks to be requeued (EX_TEMPFAIL).
REQUEUE_CODE = 75
# Failures caused by the infrastructure.
INFRASTRUCTURE_FAILURES = frozenset(
    {ReasonKind.LOST, ReasonKind.REBOOT, ReasonKind.NODE_FAIL, ReasonKind.PREEMPTED}
)
# Reasons of jobs that reservations, idle limits, early stopping or other users stop; kept after the end.
KEPT_REASONS = frozenset(
    {ReasonKind.IDLE_GPUS, ReasonKind.RESERVED, ReasonKind.CANCELLED_BY_USER, ReasonKind.STOPPED_EARLY}
)
# Upper bound of the doubled retry delay. A longer --retry-delay is used as it is.
LONGEST_PAUSE_S = 3600
# How a shell reports Ctrl-C. In a terminal the user intends it; it is not a failure of the job.
SIGINT = 2
INTERRUPTED_CODE = 128 + SIGINT
# Final states decided by another target, by the problem that it reports.
REMOTE_ENDS = {ReasonKind.TIME_LIMIT: TIMEOUT, ReasonKind.CANCELLED_THERE: CANCELLED}


def exited(state: State, event: Exited, effects: list[Effect]) -> None:
    """Handle the end of an attempt: all of its processes are gone."""
    key, attempt, at = event.key, event.attempt, event.at
    job = state.jobs.get(key) or find_remote_task(state, key, attempt, at, effects)
    if job is not None and job.attempt == attempt and key in state.remote.jobs:
        has_kept = job.remote is not None and job.remote.kept is not None
        state.leave_race(job, at.boot)
        if _end_remote(state, job, event, effects, has_kept=has_kept):
            return
    elif job is None or job.progress is not None or job.state is not RUNNING or job.attempt != attempt:
        # A report about an old attempt: its end is recorded already.
        effects.append(Forget(key, attempt))
        return
    job.exit_code = event.code
    job.signal = event.signal
    if event.cpu_ms or event.peak_kib:
        job.add_usage(event.cpu_ms, event.peak_kib)
    preemptor = state.running.yielding.get(key)
    remote = job.remote
    if remote is not None:
        state.remote.remove(job)
    else:
        state.unbook(job, at.boot)
    to, reason = _end_of_attempt(job, event)
    why = decide_requeue(job, event, to)
    if event.problem.kind is DEFERRED.kind:
        stall(state, event.problem.detail or event.problem.code, at)
    else:  # the attempt had begun, so starts succeed
        state.machine.stalls = 0
    if why:
        _requeue(state, job, why, reason, event, effects)
    else:
        finish(state, job, to, reason, at, effects, ended=_end_moment(job, event))
        if remote is not None:
            job.remote = remote  # kept in the record: the nodes on which it ran
    effects.append(Forget(key, attempt))
    if preemptor is not None:
        start_first(state, preemptor, at, effects)
    run_round(state, at, effects)


def _end_remote(state: State, job: Job, event: Exited, effects: list[Effect], *, has_kept: bool) -> bool:
    """Handle the end of a remote job; return False if it ran there and ends like a local job.

    `has_kept`: the job was withdrawn because it can start here on resources kept for it. For an array, the
    event means that no more of its tasks will start there.
    """
    if event.problem.kind is ReasonKind.WITHDRAWN and job.state is QUEUED:
        _requeue_withdrawn(state, job, event, effects)
        if has_kept:
            start_first(state, job.key, event.at, effects)
        run_round(state, event.at, effects)
        return True
    if job.state is QUEUED:
        begin_remote(job, event.at)
    if not job.is_array:
        return False
    state.remote.remove(job)
    to, reason = _end_of_attempt(job, event)
    finish(state, job, to, reason, event.at, effects)
    run_round(state, event.at, effects)
    return True


def _requeue_withdrawn(state: State, job: Job, event: Exited, effects: list[Effect]) -> None:
    """Return a withdrawn job, which never began there, to the queue; or hold it if that was asked."""
    is_held = job.remote is not None and job.remote.hold
    state.remote.remove(job)
    job.target = job.spec.on or LOCAL
    if is_held:
        move(job, HOLD, HELD)
    else:
        job.reason = REQUEUED
        state.admit(job, event.at)
    effects += (Save(job), AddAuditEntry(job.key, "taken back", f"attempt {job.attempt} never began"))
    effects.append(Forget(job.key, event.attempt))


def begin_remote(job: Job, at: Moment) -> None:
    """Mark a remote job as running. Its target enforces the time limit, so no deadline is set here."""
    move(job, RUNNING)
    if job.started_at is None:
        job.started_at, job.started_boot = at


def find_remote_task(
    state: State, key: JobKey, attempt: int, at: Moment, effects: list[Effect]
) -> Job | None:
    """Make a job of a task of a remote array; None if the key is not such a task."""
    array = state.jobs.array_with(key)
    if array is None or array.key not in state.remote.jobs or array.attempt != attempt:
        return None
    task = split_remote_task(state, array, key, at)
    effects.append(Save(array))
    return task


def split_remote_task(state: State, array: Job, key: JobKey, at: Moment) -> Job:
    """Split one waiting task off a remote array, as a remote job of its own."""
    number = task_of(key)
    assert number is not None
    assert array.progress is not None
    rest = array.progress.pending.without(number)
    array.progress = msgspec.structs.replace(array.progress, pending=rest, active=array.progress.active + 1)
    if array.started_at is None:
        array.started_at, array.started_boot = at
    if not rest:
        state.remote.remove(array)
        move(array, RUNNING)
    task = new_task(state, array, number)
    task.attempt = array.attempt
    task.remote = RemoteState()
    state.remote.add(task)
    return task


def _end_of_attempt(job: Job, event: Exited) -> tuple[JobState, Reason]:
    """Determine the state after an attempt, Queued if it was preempted, and the reason."""
    stopping = job.stopping
    if stopping is not None:
        if stopping is FAILED or stopping is QUEUED or job.reason.kind in KEPT_REASONS:
            return stopping, job.reason
        return stopping, TIME_LIMIT if stopping is TIMEOUT else CANCELLED_BY_USER
    problem, code = event.problem, event.code
    if problem:
        return REMOTE_ENDS.get(problem.kind, FAILED), problem
    is_interrupted = job.spec.pty and (event.signal == SIGINT or code == INTERRUPTED_CODE)
    failed = CANCELLED if is_interrupted else FAILED
    if event.signal:
        return failed, Reason(ReasonKind.SIGNAL, str(event.signal))
    if code is None:  # the exit was not observed, so it does not count as a success
        return FAILED, LOST
    if code:
        return failed, Reason(ReasonKind.EXIT_CODE, str(code))
    return FINISHED, NO_REASON


def _requeue(
    state: State, job: Job, why: Reason, reason: Reason, event: Exited, effects: list[Effect]
) -> None:
    """Return the job to the queue for its next attempt; hold it if it is in a requeue loop."""
    at, end = event.at, _end_moment(job, event)
    ran_s = job.run_s(end.boot)
    is_quick = ran_s is not None and ran_s < QUICK_S
    job.quick_ends = job.quick_ends + 1 if is_quick and why is REQUEUED else 0
    ended = f"after attempt {job.attempt}: {reason}"
    if why is RETRY:
        job.retries += 1
        delay_s = retry_delay_s(job)
        job.set_retry_delay(delay_s, at)
        ended += f"; next in {delay_s} s" if delay_s else ""
    ran = Ran(job.key, job.attempt, job.started_at or end.wall, end.wall, job.gpu_ids, ran_s or 0.0)
    job.gpu_ids = ()
    job.started_at = job.started_boot = None
    job.stopping = None
    job.stop_now = False
    job.target = job.spec.on or LOCAL
    if job.quick_ends >= QUICK_ENDS:
        job.quick_ends = 0
        move(job, HOLD, Reason(ReasonKind.REQUEUE_LOOP))
    else:
        move(job, QUEUED, why)
        state.admit(job, at)
    effects += (Save(job), AddAuditEntry(job.key, why.code.lower(), ended))
    if why is not LEASED and why is not DEFERRED:  # the attempt began
        effects.append(ran)


def _end_moment(job: Job, event: Exited) -> Moment:
    """When the attempt ended: not before its start, and before `event.at` if no daemon ran then."""
    ago_s = min(event.ended_ago_s, job.run_s(event.at.boot) or 0.0)
    return Moment(event.at.wall - ago_s, event.at.boot - ago_s)


def finish(
    state: State,
    job: Job,
    to: JobState,
    reason: Reason,
    at: Moment,
    effects: list[Effect],
    *,
    ended: Moment | None = None,
) -> None:
    """Make a job final, and release or cancel its children, transitively. `ended`: when, if not `at`.

    An array with started tasks is not final yet; its waiting tasks end now. Iterative, because chains of
    dependencies may be long.
    """
    pending = [(job, to, reason, ended or at)]
    while pending:
        job, to, reason, end = pending.pop()
        key = job.key
        if key in state.jobs.tasks:
            _wind_down(job, to, reason)
            effects.append(Save(job))
        else:
            job.ran_s = job.run_s(end.boot)
            move(job, to, reason)
            job.finished_at = end.wall
            job.stopping = None
            job.stop_now = False
            state.drop(job)
            effects += (Save(job), AddAuditEntry(key, ENDED[to], str(reason)))
            note_end(state, job, at, effects)
            if job.progress is not None and job.target != LOCAL:
                effects.append(Forget(key, job.attempt))
        for parent in _list_ended(state, job) if state.dependencies.children else ():
            for child_key in _affected_children(state, parent, to):
                child = state.jobs[child_key]
                if cut_off := release_or_cut_off(state, child, at, effects):
                    pending.append((child, CANCELLED, cut_off, at))
        if key & TASK_MASK and (ended_array := _end_task(state, job, at, effects)):
            pending.append((*ended_array, end))


def _wind_down(array: Job, to: JobState, reason: Reason) -> None:
    """Start no more tasks of the array. It becomes final when the last started task has ended."""
    if array.state is HOLD:
        move(array, QUEUED)
    if array.state is QUEUED:
        move(array, RUNNING)
    array.stopping = to
    array.reason = reason


def _list_ended(state: State, job: Job) -> list[JobKey]:
    """Keys that have ended: first the job if it is final, then awaited tasks of it that will never start."""
    ended = [job.key] if job.is_final else []
    if job.progress is None or not job.progress.pending:
        return ended
    waiting = job.progress.pending
    awaited = state.dependencies.awaited.get(job.key, ())
    return ended + sorted(key for key in awaited if (task := task_of(key)) is not None and task in waiting)


def _affected_children(state: State, parent: JobKey, ended: JobState) -> list[JobKey]:
    """Update the waits of a parent that ended; return the children to release or cancel, in order.

    If there are more than `state.part`, they are put into `state.arriving`, to be handled a few per step, and
    none are returned.
    """
    affected: list[JobKey] = []
    for wait in state.dependencies.take_waits(parent):
        was_broken, any_of = wait.broken is not None, wait.any_of
        others = set(any_of) if any_of is not None and parent in any_of and ended is FINISHED else set()
        wait.parent_ended(parent, ended)
        for other in others - wait.parents - {parent}:  # an any-of that is met does not wait for the others
            state.dependencies.unlink(other, wait)
        # If the wait was broken before, the children that it cancels have been handled.
        if wait.is_over or (wait.broken is not None and not was_broken):
            affected += wait.jobs
    return _defer_many(state, affected)


def _defer_many(state: State, children: list[JobKey]) -> list[JobKey]:
    """The children in order; none if they are too many for this step: then they arrive later."""
    if len(children) > state.part:
        for key in sorted(children):
            if key not in state.arriving:
                state.arriving[key] = 0
        return []
    return sorted(children)


def release_started(state: State, at: Moment, effects: list[Effect]) -> bool:
    """Release the jobs that wait for a start that is among the effects; whether there were any."""
    started = {effect.job.key for effect in effects if isinstance(effect, Save)}
    started &= state.dependencies.awaited_starts
    affected: list[JobKey] = []
    for parent in sorted(started):
        if state.jobs.has_begun(parent):
            for wait in state.dependencies.take_start_waits(parent):
                affected += wait.jobs if wait.is_over else ()
    children = _defer_many(state, affected)
    for key in children:
        release_or_cut_off(state, state.jobs[key], at, effects)
    if children:
        start_among(state, {state.ready.where.get(key) for key in children}, at, effects)
    return bool(children)


def release_or_cut_off(state: State, job: Job, at: Moment, effects: list[Effect]) -> Reason:
    """Admit a job whose dependencies are met; return the reason to cancel it if they cannot be met."""
    wait = state.dependencies.waits[job.key]
    if wait.broken is not None:
        if job.spec.no_auto_cancel:
            return NO_REASON
        state.stop_waiting(job)
        return Reason(ReasonKind.DEPENDENCY_FAILED, job=wait.broken)
    if wait.is_over:
        state.stop_waiting(job)
        if job.state is QUEUED:
            state.admit(job, at)
            if job in state.ready:
                effects.append(Save(job))
    return NO_REASON


def _end_task(
    state: State, task: Job, at: Moment, effects: list[Effect]
) -> tuple[Job, JobState, Reason] | None:
    """Count a task that ended; if it was the last, return the array with its final state and reason."""
    array = state.jobs[job_key(task.number)]
    assert array.progress is not None
    array.progress = _count_task(array.progress, task)
    array.add_usage(task.cpu_ms, task.peak_kib)
    waiting = array.progress.pending and array.stopping is None
    if array.progress.active or waiting or array.key in state.remote.jobs:
        effects.append(Save(array))
        return None
    array.exit_code = array.progress.worst
    return (array, *end_of_array(array))


def _count_task(progress: ArrayProgress, task: Job) -> ArrayProgress:
    code = 128 + task.signal if task.signal else task.exit_code if task.exit_code is not None else 125
    is_ok = task.state is FINISHED
    is_cancelled = task.state is CANCELLED
    return msgspec.structs.replace(
        progress,
        active=progress.active - 1,
        ok=progress.ok + is_ok,
        cancelled=progress.cancelled + is_cancelled,
        bad=progress.bad + (not is_ok and not is_cancelled),
        worst=progress.worst if is_ok or is_cancelled else max(progress.worst, code or 1),
    )


def end_of_array(array: Job) -> tuple[JobState, Reason]:
    """Determine the final state and reason of an array without active or waiting tasks."""
    assert array.progress is not None
    progress = array.progress
    if array.stopping is not None:
        return array.stopping, array.reason
    if progress.bad:
        return FAILED, Reason(ReasonKind.TASKS_FAILED, str(progress.bad))
    if progress.cancelled:
        return CANCELLED, Reason(ReasonKind.TASKS_CANCELLED, str(progress.cancelled))
    return FINISHED, NO_REASON


def active_tasks(state: State, array: JobKey) -> list[Job]:
    """The tasks of an array that are jobs of their own and not final, by task number."""
    return [state.jobs[key] for key in sorted(state.jobs.tasks.get(array, ()))]


def decide_requeue(job: Job, event: Exited, to: JobState) -> Reason:
    """Decide whether the job is requeued; return REQUEUED, RETRY, PREEMPTED, or NO_REASON if it is not.

    LEASED and DEFERRED: the attempt never began.
    """
    spec, problem = job.spec, event.problem.kind
    if to is QUEUED:  # preempted by a job, or by a spot notice
        return PREEMPTED if job.reason.job else REQUEUED
    if to is CANCELLED or to is FINISHED:
        return NO_REASON
    if problem is LEASED.kind:
        return LEASED
    if problem is DEFERRED.kind:
        return DEFERRED
    if spec.requeue and (to is TIMEOUT or problem in INFRASTRUCTURE_FAILURES or event.code == REQUEUE_CODE):
        return REQUEUED
    has_retries = job.retries < spec.max_retries
    return RETRY if has_retries and _is_retryable(spec.retry_on, event, to) else NO_REASON


def _is_retryable(kinds: tuple[str, ...], event: Exited, to: JobState) -> bool:
    """Whether the end matches one of the --retry-on `kinds`; without any, whether it is a failure."""
    if not kinds:
        return to is FAILED
    return not set(kinds).isdisjoint(_retry_kinds(event, to))


def _retry_kinds(event: Exited, to: JobState) -> set[str]:
    """All --retry-on names that match this end."""
    if to is TIMEOUT:
        return {"any", "timeout"}
    kinds = {"any", "failed"}
    problem = event.problem.kind
    if problem is ReasonKind.OUT_OF_MEMORY:
        kinds.add("oom")
    elif problem is ReasonKind.START_FAILED:
        kinds.add("start")
    elif problem in INFRASTRUCTURE_FAILURES or (event.code is None and event.signal is None):
        kinds |= {"lost"}
    elif event.signal is not None:
        kinds |= {"signal", f"signal:{event.signal}"}
    else:
        kinds |= {"exit", f"exit:{event.code}"}
    return kinds


def retry_delay_s(job: Job) -> int:
    """Delay before retry number `job.retries`: exponential backoff, capped at LONGEST_PAUSE_S."""
    first = job.spec.retry_delay_s
    doublings = min(job.retries - 1, 32)
    return min(first << max(0, doublings), max(first, LONGEST_PAUSE_S))
