"""The engine: `step(state, event) -> [Effect]`. The one function that decides anything.

A step checks first and changes afterwards: an event that is refused (it raises) has
changed nothing. Same state and same event give the same effects, always.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import msgspec

from gflow.core.effects import Accepted, Effect, Forget, Save, Start, Stop
from gflow.core.events import Cancel, Event, Exited, GpusSeen, Submit, Tick
from gflow.core.ids import JobKey, job_key, label, parse_label
from gflow.core.model import Job, JobState, Moment, Spec
from gflow.core.place import choose
from gflow.core.state import State
from gflow.core.states import move
from gflow.errors import Forbidden, NotFound, Refused


def step(state: State, event: Event) -> list[Effect]:
    """Take one event; return what must be made durable and done, in order."""
    effects: list[Effect] = []
    HANDLERS[type(event)](state, event, effects)
    return effects


def resolve(state: State, uid: int, reference: str) -> JobKey:
    """The job meant by `17`, `42_3`, `@` or `@~2` when `uid` says it."""
    if reference.startswith("@"):
        back = _back(reference)
        recent = state.recent.get(uid, ())
        if back >= len(recent):
            raise Refused(f"{reference} means none of your jobs: you have submitted {len(recent)}")
        return recent[-1 - back]
    key = parse_label(reference)
    if key is None:
        raise NotFound(f"{reference!r} is not a job id")
    return key


def _back(reference: str) -> int:
    """How many jobs `@` or `@~N` goes back; anything else means no job."""
    if reference == "@":
        return 0
    digits = reference[2:]
    if not reference.startswith("@~") or not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise NotFound(
            f"{reference!r} is not a job id", hint="write @ for your latest job, @~1 for the one before it"
        )
    return int(digits)


# ---------------------------------------------------------------- submit


def _submit(state: State, event: Submit, effects: list[Effect]) -> None:
    specs = [
        _with_parents(state, event, spec, references)
        for spec, references in zip(event.specs, event.references, strict=True)
    ]
    for spec in specs:
        if spec.gpus > len(state.gpus):
            raise Refused(_too_many_gpus(spec.gpus, len(state.gpus)), hint="see what there is with ginfo")
    keys: list[JobKey] = []
    for spec in specs:
        job = Job(
            key=job_key(state.next_number),
            spec=spec,
            uid=event.uid,
            user=event.user,
            submitted_at=event.at.wall,
        )
        state.next_number += 1
        state.jobs[job.key] = job
        state.remember_recent(event.uid, job.key)
        _enqueue(state, job, event.outcomes)
        keys.append(job.key)
        effects.append(Save(job))
    effects.append(Accepted(tuple(keys)))
    _round(state, event.at, effects)


def _with_parents(state: State, event: Submit, spec: Spec, references: tuple[str, ...]) -> Spec:
    """The spec with its parents resolved, or a refusal that names what is wrong with one."""
    if not references:
        return spec
    parents = tuple(dict.fromkeys(resolve(state, event.uid, text) for text in references))
    for key in parents:
        ended = _outcome(state, key, event.outcomes)
        if ended is None and key not in state.jobs:
            raise NotFound(f"there is no job {label(key)} to depend on")
        if ended is not None and ended is not JobState.FINISHED:
            raise Refused(f"job {label(key)} ended {ended.value}: a job that depends on it would never start")
    return msgspec.structs.replace(spec, depends_on=parents)


def _outcome(state: State, key: JobKey, outcomes: dict[JobKey, JobState]) -> JobState | None:
    """How a job ended, or None if it has not."""
    return None if key in state.jobs else state.ended.get(key, outcomes.get(key))


def _enqueue(state: State, job: Job, outcomes: dict[JobKey, JobState]) -> None:
    unmet = [key for key in job.spec.depends_on if _outcome(state, key, outcomes) is not JobState.FINISHED]
    if unmet:
        state.wait_for(job, unmet)
    else:
        state.ready.add(job)


def _too_many_gpus(wanted: int, have: int) -> str:
    if not have:
        return (
            f"the job asks for {wanted} GPU{'s' * (wanted > 1)}, and this machine has none that gflow can see"
        )
    return f"the job asks for {wanted} GPUs, and this machine has {have}"


# ---------------------------------------------------------------- start


def _round(state: State, at: Moment, effects: list[Effect]) -> None:
    """Start every job that can start now, in order."""
    walk = state.ready.walk()
    while (key := walk.next(len(state.gpus) - len(state.holders))) is not None:
        job = state.jobs[key]
        gpu_ids = choose(state, job.spec)
        if gpu_ids is None:
            walk.skip(job)
        else:
            _start(state, job, gpu_ids, at, effects)
    walk.close()


def _start(state: State, job: Job, gpu_ids: tuple[int, ...], at: Moment, effects: list[Effect]) -> None:
    state.ready.remove(job)
    move(job, JobState.RUNNING)
    job.attempt += 1
    job.gpu_ids = gpu_ids
    job.started_at = at.wall
    job.started_boot = at.boot
    state.book(job)
    effects += (Save(job), Start(job.key, job.attempt))


# ---------------------------------------------------------------- end


def _exited(state: State, event: Exited, effects: list[Effect]) -> None:
    job = state.jobs.get(event.key)
    if job is None or job.state is not JobState.RUNNING or job.attempt != event.attempt:
        # An old attempt, told twice: its end is already written down.
        effects.append(Forget(event.key, event.attempt))
        return
    job.exit_code = event.code
    job.signal = event.signal
    state.unbook(job)
    _finish(state, job, *_verdict(job, event), event.at, effects)
    effects.append(Forget(event.key, event.attempt))
    _round(state, event.at, effects)


def _verdict(job: Job, event: Exited) -> tuple[JobState, str]:
    """The final state of a job whose processes are gone, and the reason."""
    if job.stopping is not None:
        return job.stopping, "TimeLimit" if job.stopping is JobState.TIMEOUT else "CancelledByUser"
    if event.problem:
        return JobState.FAILED, event.problem
    if event.signal:
        return JobState.FAILED, f"Signal:{event.signal}"
    if event.code:
        return JobState.FAILED, f"ExitCode:{event.code}"
    return JobState.FINISHED, ""


def _finish(state: State, job: Job, to: JobState, reason: str, at: Moment, effects: list[Effect]) -> None:
    """Take a job to its final state, and those that waited for it further or down with it."""
    line = [(job, to, reason)]
    while line:
        job, to, reason = line.pop()
        move(job, to, reason)
        job.finished_at = at.wall
        job.stopping = None
        del state.jobs[job.key]
        state.ended[job.key] = to
        effects.append(Save(job))
        for child_key in sorted(state.children.pop(job.key, ())):
            child = state.jobs[child_key]
            if to is JobState.FINISHED:
                _parent_succeeded(state, child, job.key)
            else:
                _leave_queue(state, child)
                line.append((child, JobState.CANCELLED, f"DependencyFailed:{job.label}"))


def _parent_succeeded(state: State, child: Job, parent: JobKey) -> None:
    unmet = state.parents[child.key]
    unmet.discard(parent)
    if not unmet:
        del state.parents[child.key]
        state.ready.add(child)


def _leave_queue(state: State, job: Job) -> None:
    """Take a waiting job out of everything it waits in."""
    for parent in state.parents.pop(job.key, ()):
        siblings = state.children.get(parent)
        if siblings is not None:
            siblings.discard(job.key)
            if not siblings:
                del state.children[parent]
    state.ready.remove(job)


# ---------------------------------------------------------------- stop


def _cancel(state: State, event: Cancel, effects: list[Effect]) -> None:
    jobs = [state.jobs[key] for key in event.keys if key in state.jobs]
    for job in jobs:
        if event.uid not in (job.uid, 0):
            raise Forbidden(f"job {job.label} belongs to {job.user}")
    for job in jobs:
        if job.state is JobState.RUNNING:
            if job.stopping is None or event.now:
                job.stopping = job.stopping or JobState.CANCELLED
                effects += (Save(job), Stop(job.key, job.attempt, event.now))
        elif job.key in state.jobs:  # a parent cancelled in this loop takes its children along
            _leave_queue(state, job)
            _finish(state, job, JobState.CANCELLED, "CancelledByUser", event.at, effects)
    _round(state, event.at, effects)


def _tick(state: State, event: Tick, effects: list[Effect]) -> None:
    while (due := state.next_due()) is not None and due <= event.at.boot:
        _, key, attempt = heapq.heappop(state.limits)
        job = state.jobs[key]
        job.stopping = JobState.TIMEOUT
        effects += (Save(job), Stop(key, attempt))


def _gpus_seen(state: State, event: GpusSeen, effects: list[Effect]) -> None:
    state.gpus = {gpu.index: gpu for gpu in sorted(event.gpus, key=lambda gpu: gpu.index)}
    _round(state, event.at, effects)


HANDLERS: dict[type[Event], Callable[[State, Any, list[Effect]], None]] = {
    Submit: _submit,
    Cancel: _cancel,
    Exited: _exited,
    Tick: _tick,
    GpusSeen: _gpus_seen,
}
