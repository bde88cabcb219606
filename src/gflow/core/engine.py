"""The engine: `step(state, event) -> [Effect]`. The one function that decides anything.

A step checks first and changes afterwards: an event that is refused (it raises) has
changed nothing. Same state and same event give the same effects, always.

This file takes jobs in; `rounds` starts them, `ending` is how they end, `changing` and `updating` are what
people may do to them meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gflow.core.effects import Accepted, AddAuditEntry, Effect, Keep, Save
from gflow.core.events import (
    Abandon,
    Arrive,
    Cancel,
    Claim,
    Close,
    Drain,
    Event,
    Exited,
    Foresee,
    GpusSeen,
    Hold,
    Idled,
    IdleSeen,
    LeasesSeen,
    Open,
    Overran,
    Progressed,
    Reclaimed,
    Release,
    Reserve,
    Restrict,
    Seen,
    SetQuota,
    Stage,
    Stuck,
    Submit,
    Tick,
    Unclaim,
    Unreserve,
    Update,
)
from gflow.core.ids import JobKey, job_key, label, parse_label
from gflow.core.lifecycle import (
    admin,
    cancel,
    claims,
    finish,
    limits,
    machine_events,
    remote,
    staged_submit,
    update,
)
from gflow.core.lifecycle.machine_events import resume_due
from gflow.core.lifecycle.submit import admitted
from gflow.core.model import Job, Spec
from gflow.core.scheduling.scheduler import run_round, start_among
from gflow.core.state.state import State
from gflow.core.transitions import QUEUED
from gflow.errors import NotFound, Refused, UsageError

# A job's number, or an array's with a task, of any length.
_NUMBERS = re.compile(r"[0-9]+(_[0-9]+)?")

Handler = Callable[[State, Any, list[Effect]], None]


def step(state: State, event: Event) -> list[Effect]:
    """Take one event; return what must be made durable and done, in order."""
    effects: list[Effect] = []
    HANDLERS[type(event)](state, event, effects)
    if state.undecided:
        remote.decide(state, event.at, effects)
    return effects


def resolve(state: State, uid: int, reference: str) -> JobKey:
    """The job meant by `17`, `42_3`, `@` or `@~2` when `uid` says it.

    A malformed reference is a usage error on every command; a well-formed one of no job is not found.
    """
    if reference.startswith("@"):
        back = _back(reference)
        recent = state.recent.get(uid, ())
        if back >= len(recent):
            raise Refused(f"{reference} means none of your jobs: you have submitted {len(recent)}")
        return recent[-1 - back]
    key = parse_label(reference)
    if key is not None:
        return key
    if _NUMBERS.fullmatch(reference):  # larger than any key
        raise NotFound(f"there is no job {reference:.60}")
    raise UsageError(f"{reference!a:.60} is not a job id", hint="jobs are named 42, 42_3, 5-9 or @")


def _back(reference: str) -> int:
    """How many jobs `@` or `@~N` goes back."""
    if reference == "@":
        return 0
    digits = reference[2:]
    if not reference.startswith("@~") or not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        hint = "write @ for your latest job, @~1 for the one before it"
        raise UsageError(f"{reference!a:.60} is not a job id", hint=hint)
    return int(digits)


# ---------------------------------------------------------------- submit


def _submit(state: State, event: Submit, effects: list[Effect]) -> None:
    specs, at = event.specs, event.at
    waits = admitted(state, event.uid, event.user, specs, event.outcomes, event.hidden)
    keys = []
    groups = set()
    for spec, wait in zip(specs, waits, strict=True):
        job = _new_job(state, event, spec)
        key = job.key
        keys.append(key)
        if wait is not None:
            state.wait_for(job, wait)
        if job.state is QUEUED:
            groups.add(state.admit(job, at))
        again = f"job {label(spec.redone_from)} again" if spec.redone_from else ""
        effects += (Save(job), AddAuditEntry(key, "submitted", again))
    effects.append(Accepted(tuple(keys)))
    start_among(state, groups, at, effects)


def _new_job(state: State, event: Submit, spec: Spec) -> Job:
    key = job_key(state.next_number)
    state.next_number += 1
    job = staged_submit.new_job(key, spec, event.uid, event.user, event.at.wall)
    state.add(job)
    state.remember_recent(event.uid, key)
    return job


# ---------------------------------------------------------------- time and the machine


def _foresee(state: State, event: Foresee, effects: list[Effect]) -> None:
    """For `gjob why`; no decision goes by it."""
    told = state.foretold
    told.keep_only(key for key in told.record.open if key in state.jobs and state.jobs[key] in state.ready)
    job = state.jobs.get(event.key)
    if event.case is not None and job is not None and job in state.ready:
        told.tell(job.key, event.case)


def _tick(state: State, event: Tick, effects: list[Effect]) -> None:
    finish.warn_due(state, event.at, effects)
    finish.stop_overdue(state, event.at, effects)
    state.postpone(event.at)
    due = cancel.admit_due(state, event.at, effects)
    late = any(promise.now < promise.start_at <= event.at.boot for promise in state.start_reservations)
    changed = state.reserved.live and state.reserved.pass_time(event.at.wall)
    if resume_due(state, event.at) or changed or late:
        run_round(state, event.at, effects)  # GPUs are free again, or what was expected to end has not
    elif due:
        start_among(state, due, event.at, effects)
    remote.send_overdue(state, event.at, effects)


def _gpus_seen(state: State, event: GpusSeen, effects: list[Effect]) -> None:
    effects += _availability(state, event)
    state.machine.blocked, state.machine.taken = dict(event.blocked), dict(event.taken)
    state.machine.gpu_trouble = event.trouble
    state.machine.see_gpus(event.gpus)
    names = _names(state)
    if names and names != state.machine.gpu_names:
        state.machine.gpu_names = names
        effects.append(Keep("gpu_names", names))
    if event.faults is not None and event.faults != state.machine.faults:
        state.machine.faults = dict(event.faults)
        effects.append(Keep("gpu_faults", msgspec.json.encode(state.machine.faults).decode()))
    run_round(state, event.at, effects)


def _availability(state: State, event: GpusSeen) -> Iterator[Effect]:
    """A line for every GPU that is blocked now and was not, or the other way round."""
    for index in sorted({*state.machine.blocked, *event.blocked}):
        was, now = state.machine.blocked.get(index), event.blocked.get(index)
        if (was and was.kind) != (now and now.kind):
            yield AddAuditEntry(None, "gpu", f"GPU {index}: {now or 'available'}")


def _names(state: State) -> str:
    """Which card each number means: `0=GPU-…`, or `4=MIG-…@GPU-…` for a slice of one.

    The driver's numbers may change while a job runs, and cards that jobs have may be out of sight: the
    next daemon must know what is meant.
    """
    names = {
        gpu.index: f"{gpu.index}={gpu.uuid}" + (f"@{gpu.parent}" if gpu.parent else "")
        for gpu in state.machine.gpus.values()
        if not gpu.simulated
    }
    for part in filter(None, state.machine.gpu_names.split(",")):
        index = int(part.partition("=")[0])
        if index in state.machine.holders:
            names.setdefault(index, part)
    return ",".join(names[index] for index in sorted(names))


def _leases_seen(state: State, event: LeasesSeen, effects: list[Effect]) -> None:
    state.machine.foreign = dict(event.foreign)
    state.machine.recount()
    run_round(state, event.at, effects)


def _restrict(state: State, event: Restrict, effects: list[Effect]) -> None:
    if event.allowed is not None and (unknown := sorted(set(event.allowed) - set(state.machine.gpus))):
        raise Refused(f"there is no GPU {unknown[0]} here", hint="see what there is with ginfo")
    state.machine.restrict(None if event.allowed is None else frozenset(event.allowed))
    state.policy = msgspec.structs.replace(state.policy, gpus_win=False)  # what is said later holds
    value = "all" if event.allowed is None else ",".join(map(str, sorted(event.allowed)))
    effects.append(Keep("allowed_gpus", value))
    run_round(state, event.at, effects)


HANDLERS: dict[type[Event], Handler] = {
    Submit: _submit,
    Open: staged_submit.open_submission,
    Stage: staged_submit.stage,
    Close: staged_submit.close,
    Abandon: staged_submit.abandon,
    Arrive: staged_submit.arrive,
    Claim: claims.claim,
    Unclaim: claims.unclaim,
    Cancel: cancel.cancel,
    Hold: cancel.hold,
    Release: cancel.release,
    Update: update.update,
    Exited: finish.exited,
    Seen: remote.seen,
    Overran: finish.overran,
    Stuck: finish.stuck,
    IdleSeen: limits.idle_seen,
    Idled: limits.idled,
    Progressed: limits.progressed,
    Tick: _tick,
    Foresee: _foresee,
    GpusSeen: _gpus_seen,
    LeasesSeen: _leases_seen,
    Restrict: _restrict,
    Drain: machine_events.drain,
    Reclaimed: machine_events.reclaimed,
    SetQuota: admin.set_quota,
    Reserve: admin.reserve,
    Unreserve: admin.unreserve,
}
