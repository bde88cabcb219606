"""How jobs end: by themselves, by their limit, or because a parent failed; and who goes on then.

Whether a job that ended badly is tried again, and after how long a pause.
"""

from __future__ import annotations

import heapq

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Forget, Ran, Save, Stop, Warn
from gflow.core.events import Exited, Overran, Stuck
from gflow.core.ids import TASK_MASK, JobKey, job_key, label, parse_label, task_of
from gflow.core.lifecycle.machine_events import stall
from gflow.core.model import (
    CUT_OFF,
    IDLE,
    LOCAL,
    PREEMPTED,
    RESERVED,
    Abroad,
    ArrayProgress,
    Job,
    JobState,
    Moment,
)
from gflow.core.scheduling.placement import gib
from gflow.core.scheduling.scheduler import new_task, run_round, start_first
from gflow.core.state.deadlines import WARNED
from gflow.core.state.state import State
from gflow.core.transitions import CANCELLED, ENDED, FAILED, FINISHED, HOLD, QUEUED, RUNNING, TIMEOUT, move

# A job that wants to be queued again after each of this many short attempts is held instead.
QUICK_S = 60.0
QUICK_ENDS = 5
# Ends that another target decided on.
ELSEWHERE = {"TimeLimit": TIMEOUT, "CancelledThere": CANCELLED}


def exited(state: State, event: Exited, effects: list[Effect]) -> None:
    """Nothing of this attempt lives any more."""
    key, attempt, at = event.key, event.attempt, event.at
    job = state.jobs.get(key) or coming(state, key, attempt, at, effects)
    if job is not None and job.attempt == attempt and key in state.abroad:
        kept = job.abroad is not None and job.abroad.kept is not None
        state.leave_race(job, at.boot)
        if _comes_back(state, job, event, effects, kept=kept):
            return
    elif job is None or job.progress is not None or job.state is not RUNNING or job.attempt != attempt:
        # An old attempt, told twice: its end is already written down.
        effects.append(Forget(key, attempt))
        return
    job.exit_code = event.code
    job.signal = event.signal
    if event.cpu_ms or event.peak_kib:
        job.add_usage(event.cpu_ms, event.peak_kib)
    whom = state.yielding.get(key)
    was = job.abroad
    if was is not None:
        state.fetch(job)
    else:
        state.unbook(job, at.boot)
    to, reason = _verdict(job, event)
    why = again(job, event, to)
    if event.problem.startswith(DEFERRED):
        stall(state, reason.removeprefix(f"{DEFERRED}: "), at)
    else:  # it had begun: starts work
        state.machine.stalls = 0
    if why:
        _requeue(state, job, why, reason, event, effects)
    else:
        finish(state, job, to, reason, at, effects)
        if was is not None:
            job.abroad = was  # where it ran
    effects.append(Forget(key, attempt))
    if whom is not None:
        start_first(state, whom, at, effects)
    run_round(state, at, effects)


def _comes_back(state: State, job: Job, event: Exited, effects: list[Effect], *, kept: bool) -> bool:
    """A job that another target had. True: that is all; False: it ran, and ends like any other.

    `kept`: it was taken back because it can start here, and nobody else is to have that. Of an array it means
    that no more of its tasks will start there.
    """
    if event.problem == RECALLED and job.state is QUEUED:
        _take_back(state, job, event, effects)
        if kept:
            start_first(state, job.key, event.at, effects)
        run_round(state, event.at, effects)
        return True
    if job.state is QUEUED:
        begin(job, event.at)
    if not job.is_array:
        return False
    state.fetch(job)
    to, reason = _verdict(job, event)
    finish(state, job, to, reason, event.at, effects)
    run_round(state, event.at, effects)
    return True


def _take_back(state: State, job: Job, event: Exited, effects: list[Effect]) -> None:
    """It never began there: it is held now, or gets its next try."""
    is_held = job.abroad is not None and job.abroad.hold
    state.fetch(job)
    job.target = job.spec.on or LOCAL
    if is_held:
        move(job, HOLD, "JobHeldUser")
    else:
        job.reason = "Requeued"
        state.admit(job, event.at)
    effects += (Save(job), AddAuditEntry(job.key, "taken back", f"attempt {job.attempt} never began"))
    effects.append(Forget(job.key, event.attempt))


def begin(job: Job, at: Moment) -> None:
    """Another target has started it. How long it may run is that one's business: no alarm is set here."""
    move(job, RUNNING)
    if job.started_at is None:
        job.started_at, job.started_boot = at


def coming(state: State, key: JobKey, attempt: int, at: Moment, effects: list[Effect]) -> Job | None:
    """A task of an array that another target has, as a job of its own; None if it is none."""
    array = state.array_with(key)
    if array is None or array.key not in state.abroad or array.attempt != attempt:
        return None
    task = split_off(state, array, key, at)
    effects.append(Save(array))
    return task


def split_off(state: State, array: Job, key: JobKey, at: Moment) -> Job:
    """Split one waiting task off an array that another target has: it is there, too."""
    number = task_of(key)
    assert number is not None
    assert array.progress is not None
    rest = array.progress.pending.without(number)
    array.progress = msgspec.structs.replace(array.progress, pending=rest, active=array.progress.active + 1)
    if array.started_at is None:
        array.started_at, array.started_boot = at
    if not rest:
        state.fetch(array)
        move(array, RUNNING)
    task = new_task(state, array, number)
    task.attempt = array.attempt
    task.abroad = Abroad()
    state.send(task)
    return task


def _verdict(job: Job, event: Exited) -> tuple[JobState, str]:
    """The final state of a job whose processes are gone, and the reason."""
    stopping = job.stopping
    if stopping is not None:
        if stopping is FAILED or stopping is QUEUED or job.reason.startswith((IDLE, RESERVED)):
            return stopping, job.reason
        return stopping, "TimeLimit" if stopping is TIMEOUT else "CancelledByUser"
    problem, code = event.problem, event.code
    if problem:
        return ELSEWHERE.get(problem, FAILED), problem
    if event.signal:
        return FAILED, f"Signal:{event.signal}"
    if code is None:  # nobody saw how it ended: that is no success
        return FAILED, "Lost"
    if code:
        return FAILED, f"ExitCode:{code}"
    return FINISHED, ""


def _requeue(state: State, job: Job, why: str, reason: str, event: Exited, effects: list[Effect]) -> None:
    """Back into the queue as a further attempt of the same job; round and round it is held."""
    at = event.at
    ran_s = job.run_s(at.boot)
    quick = ran_s is not None and ran_s < QUICK_S
    job.quick_ends = job.quick_ends + 1 if quick and why == "Requeued" else 0
    if why == "Retry":
        job.retries += 1
        pause = pause_s(job)
        job.pause(pause, at)
        reason += f"; next in {pause} s" if pause else ""
    ran = Ran(job.key, job.attempt, job.started_at or at.wall, at.wall, job.gpu_ids, ran_s or 0.0)
    job.gpu_ids = ()
    job.started_at = job.started_boot = None
    job.stopping = None
    job.stop_now = False
    job.target = job.spec.on or LOCAL
    if job.quick_ends >= QUICK_ENDS:
        job.quick_ends = 0
        move(job, HOLD, "RequeueLoop")
    else:
        move(job, QUEUED, why)
        state.admit(job, at)
    effects += (Save(job), AddAuditEntry(job.key, why.lower(), f"after attempt {job.attempt}: {reason}"))
    if why not in (LEASED, DEFERRED):  # those never began
        effects.append(ran)


def finish(state: State, job: Job, to: JobState, reason: str, at: Moment, effects: list[Effect]) -> None:
    """Take a job to its final state, and those that waited for it further or down with it.

    An array lives on while started tasks of it do; what still waits in it is over now.
    """
    line = [(job, to, reason)]
    while line:
        job, to, reason = line.pop()
        key = job.key
        if key in state.tasks:
            _wind_down(job, to, reason)
            effects.append(Save(job))
        else:
            job.ran_s = job.run_s(at.boot)
            move(job, to, reason)
            job.finished_at = at.wall
            job.stopping = None
            job.stop_now = False
            state.drop(job)
            effects += (Save(job), AddAuditEntry(key, ENDED[to], reason))
            if job.progress is not None and job.target != LOCAL:
                effects.append(Forget(key, job.attempt))
        for parent in _ended_with(state, job) if state.children else ():  # the job's own key comes first
            for child_key in _concerned(state, parent, to):
                child = state.jobs[child_key]
                if cut_off := free_or_cut_off(state, child, at, effects):
                    line.append((child, CANCELLED, cut_off))
        if key & TASK_MASK and (whole := _task_ended(state, job, at, effects)):
            line.append(whole)


def _wind_down(array: Job, to: JobState, reason: str) -> None:
    """No more of this array starts; it takes its final state when the last started task is gone."""
    if array.state is HOLD:
        move(array, QUEUED)
    if array.state is QUEUED:
        move(array, RUNNING)
    array.stopping = to
    array.reason = reason


def _ended_with(state: State, job: Job) -> list[JobKey]:
    """Jobs that are over now: this one if it is final, and the tasks of an array that will never start."""
    ended = [job.key] if job.is_final else []
    if job.progress is None or not job.progress.pending:
        return ended
    waiting = job.progress.pending
    awaited = state.awaited.get(job.key, ())
    return ended + sorted(key for key in awaited if (task := task_of(key)) is not None and task in waiting)


def _concerned(state: State, parent: JobKey, ended: JobState) -> list[JobKey]:
    """A parent is final: the jobs that may be ready now or are to be cancelled, in order.

    Where they are too many for one turn they are told one after the other, and none are returned.
    """
    concerned: list[JobKey] = []
    for wait in state.take_waits(parent):
        was_broken, any_of = wait.broken is not None, wait.any_of
        others = set(any_of) if any_of is not None and parent in any_of and ended is FINISHED else set()
        wait.parent_ended(parent, ended)
        for other in others - wait.unmet - {parent}:  # an any-of that is met no longer cares for the others
            state.unlink(other, wait)
        # Of those that were to wait in vain already, all who mind are gone or going.
        if wait.is_over or (wait.broken is not None and not was_broken):
            concerned += wait.jobs
    concerned.sort()
    if len(concerned) > state.part:
        for key in concerned:
            state.arriving.setdefault(key, 0)
        return []
    return concerned


def free_or_cut_off(state: State, job: Job, at: Moment, effects: list[Effect]) -> str:
    """Let a job go on that waits for no parent any more; or why it is to be cancelled."""
    wait = state.waits[job.key]
    if wait.broken is not None:
        if job.spec.no_auto_cancel:
            return ""
        state.stop_waiting(job)
        return f"{CUT_OFF}{label(wait.broken)}"
    if wait.is_over:
        state.stop_waiting(job)
        if job.state is QUEUED:
            state.admit(job, at)
            if job in state.ready:
                effects.append(Save(job))
    return ""


def _task_ended(
    state: State, task: Job, at: Moment, effects: list[Effect]
) -> tuple[Job, JobState, str] | None:
    """Count a task that ended; the array's own end if it was the last."""
    array = state.jobs[job_key(task.number)]
    assert array.progress is not None
    array.progress = _counted(array.progress, task)
    array.add_usage(task.cpu_ms, task.peak_kib)
    waiting = array.progress.pending and array.stopping is None
    if array.progress.active or waiting or array.key in state.abroad:
        effects.append(Save(array))
        return None
    array.exit_code = array.progress.worst
    return (array, *array_verdict(array))


def _counted(progress: ArrayProgress, task: Job) -> ArrayProgress:
    code = 128 + task.signal if task.signal else task.exit_code if task.exit_code is not None else 125
    ok = task.state is FINISHED
    gone = task.state is CANCELLED
    return msgspec.structs.replace(
        progress,
        active=progress.active - 1,
        ok=progress.ok + ok,
        cancelled=progress.cancelled + gone,
        bad=progress.bad + (not ok and not gone),
        worst=progress.worst if ok or gone else max(progress.worst, code or 1),
    )


def array_verdict(array: Job) -> tuple[JobState, str]:
    """The final state of an array none of whose tasks is active or will be."""
    assert array.progress is not None
    progress = array.progress
    if array.stopping is not None:
        return array.stopping, array.reason
    if progress.bad:
        return FAILED, f"TasksFailed:{progress.bad}"
    if progress.cancelled:
        return CANCELLED, f"TasksCancelled:{progress.cancelled}"
    return FINISHED, ""


def warn_due(state: State, at: Moment, effects: list[Effect]) -> None:
    """Warn every job whose time is nearly up."""
    while (due := state.alarms.next_warning()) is not None and due <= at.boot:
        _, key, attempt = heapq.heappop(state.alarms.warnings)
        job = state.jobs[key]
        job.reason = WARNED
        number, before_s = job.spec.warning
        note = AddAuditEntry(key, "warned", f"signal {number}, {before_s} s before the limit")
        effects += (Save(job), note, Warn(key, attempt, number))


def stop_overdue(state: State, at: Moment, effects: list[Effect]) -> None:
    """Stop every job whose time limit is reached."""
    while (due := state.alarms.next_limit()) is not None and due <= at.boot:
        _, key, attempt = heapq.heappop(state.alarms.limits)
        job = state.jobs[key]
        job.stopping = TIMEOUT
        state.note_stop(job)
        limit = f"after {job.spec.time_limit_s} s"
        effects += (Save(job), AddAuditEntry(key, "time limit", limit), Stop(key, attempt))


def overran(state: State, event: Overran, effects: list[Effect]) -> None:
    """Kill a job that takes memory which others were promised, at once: they may need it any moment."""
    job = state.jobs.get(event.key)
    if job is None or job.state is not RUNNING or job.attempt != event.attempt:
        return
    if not job.spec.shared or job.stop_now:
        return
    over = f"GpuMemory: used {gib(event.used_mib)} of {gib(job.spec.gpu_memory_mib)} on GPU {event.gpu}"
    if job.stopping is None:
        job.stopping, job.reason = FAILED, over
    job.stop_now = True
    state.note_stop(job)
    effects += (Save(job), AddAuditEntry(job.key, "gpu memory", over), Stop(job.key, job.attempt, now=True))


def stuck(state: State, event: Stuck, effects: list[Effect]) -> None:
    """A job was killed and lives on: it keeps what it has, and says why."""
    job = state.jobs.get(event.key)
    if job is None or job.state is not RUNNING or job.attempt != event.attempt:
        return
    if state.stuck.get(job.key) != event.detail:
        state.stuck[job.key] = event.detail
        effects.append(AddAuditEntry(job.key, "unkillable", event.detail))


def active_tasks(state: State, array: JobKey) -> list[Job]:
    """The array's tasks that are jobs of their own and not final, by task."""
    return [state.jobs[key] for key in sorted(state.tasks.get(array, ()))]


REQUEUE_CODE = 75
# Ends that are not the job's own doing.
ACCIDENTS = ("Lost", "Reboot", "NodeFail", "Preempted")
# The attempt never began: another daemon had the GPUs. It goes back and counts as nothing.
LEASED = "Leased"
# Nor did this one: the daemon or the machine was short of something. `Deferred: Too many open files`.
DEFERRED = "Deferred"
# Nor did this one: another target had it, and gave it back.
RECALLED = "Recalled"
# The longest pause that doubling leads to; whoever asks for a longer one gets that.
LONGEST_PAUSE_S = 3600


def again(job: Job, event: Exited, to: JobState) -> str:
    """Why this job goes back into the queue: `Requeued`, `Retry`, `Preempted`, or empty if it does not.

    `Leased` and `Deferred`: the attempt never began.
    """
    spec = job.spec
    if to is QUEUED:  # it made way for a job, or the cloud takes the machine away
        return "Preempted" if parse_label(job.reason.removeprefix(PREEMPTED)) else "Requeued"
    if to is CANCELLED or to is FINISHED:
        return ""
    if event.problem == LEASED:
        return LEASED
    if event.problem.startswith(DEFERRED):
        return DEFERRED
    if spec.requeue and (to is TIMEOUT or event.problem in ACCIDENTS or event.code == REQUEUE_CODE):
        return "Requeued"
    return "Retry" if job.retries < spec.max_retries and _is_wanted(spec.retry_on, event, to) else ""


def _is_wanted(kinds: tuple[str, ...], event: Exited, to: JobState) -> bool:
    """Whether an end is one of `kinds`, as --retry-on spells them. None given: any failure."""
    if not kinds:
        return to is FAILED
    return not set(kinds).isdisjoint(_kinds_of(event, to))


def _kinds_of(event: Exited, to: JobState) -> set[str]:
    """Every name that --retry-on has for this end."""
    if to is TIMEOUT:
        return {"any", "timeout"}
    kinds = {"any", "failed"}
    if event.problem.startswith("OutOfMemory"):
        kinds.add("oom")
    elif event.problem.startswith("StartFailed"):
        kinds.add("start")
    elif event.problem in ACCIDENTS or (event.code is None and event.signal is None):
        kinds |= {"lost"}
    elif event.signal is not None:
        kinds |= {"signal", f"signal:{event.signal}"}
    else:
        kinds |= {"exit", f"exit:{event.code}"}
    return kinds


def pause_s(job: Job) -> int:
    """The pause before the retry that `job.retries` counts: twice as long each time, bounded."""
    first = job.spec.retry_delay_s
    doublings = min(job.retries - 1, 32)
    return min(first << max(0, doublings), max(first, LONGEST_PAUSE_S))
