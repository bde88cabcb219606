"""Blockers: why a job waits, as data. The only source for gqueue, gjob and the API."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gflow.core.ids import JobKey, label
from gflow.core.model import UNKILLABLE, Job, Moment, Spec
from gflow.core.reasons import HELD, ReasonKind
from gflow.core.resources import Shape, shape_of
from gflow.core.scheduling.placement import available, gib, why_impossible
from gflow.core.state.dependencies import FAILURE, START, Wait
from gflow.core.state.machine import RESTRICTED, suits
from gflow.core.state.reservations import NO_GPUS, spell_reserved
from gflow.core.state.state import State
from gflow.core.transitions import HOLD, QUEUED, RUNNING


class Blocker(msgspec.Struct, frozen=True):
    """The first thing that keeps a job from starting: a code for programs, a detail for users."""

    code: str
    detail: str = ""
    # When a GPU reservation begins and ends (wall clock).
    since: float | msgspec.UnsetType = msgspec.UNSET
    until: float | msgspec.UnsetType = msgspec.UNSET
    # The assumed run time, in seconds, of a running job without a time limit or earlier runs.
    assumed_s: float | msgspec.UnsetType = msgspec.UNSET
    # The user of the running job, if it is not the owner of the waiting one.
    user: str | msgspec.UnsetType = msgspec.UNSET

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code


def explain(state: State, job: Job, at: Moment, known: dict[Shape, Blocker] | None = None) -> Blocker | None:
    """Why a job waits; of a running job, that it does not use its GPUs or survives a kill; None: nothing.

    `known`: a cache of what jobs of each shape lack now.
    """
    if job.state is not QUEUED:
        if job.state is HOLD:
            return Blocker(str(job.reason or HELD))
        return _explain_running(state, job) if job.state is RUNNING else None
    if blocker := _explain_not_ready(state, job):
        return blocker
    shape = shape_of(job.spec)
    if state.has_quotas_or_reservations and (blocker := _explain_quota(state, job, shape, at)):
        return blocker
    if known is None:
        return explain_shape(state, shape)
    if shape not in known:
        known[shape] = explain_shape(state, shape)
    return known[shape]


def _explain_running(state: State, job: Job) -> Blocker | None:
    """Whether a running job survives a kill or does not use its GPUs."""
    if job.key in state.running.stuck:
        return Blocker(UNKILLABLE, state.running.stuck[job.key])
    idle = state.running.unused.get(job.key)
    return Blocker(ReasonKind.IDLE_GPUS.value, idle.text) if idle and not job.stopping else None


def _explain_not_ready(state: State, job: Job) -> Blocker | None:
    """What must happen before the job can start anywhere, or why it waits on another target."""
    key, machine = job.key, state.machine
    if key in state.remote.jobs:
        return _explain_remote(job)
    wait = state.dependencies.waits.get(key)
    if wait is not None:
        return Blocker("Dependency", spell_broken(wait, job.spec) if wait.broken else "")
    if key in state.arriving:
        return Blocker("Arriving")
    if state.is_claimed(job):
        return Blocker("Changing", "it is being cancelled, held or updated")
    if key in state.deadlines.later:
        return Blocker("RetryDelay" if job.retry_at > job.spec.begin_at else "BeginTime")
    if machine.is_drained:
        return Blocker("Drained", machine.drained_why or "")
    if job.spec.max_concurrent and state.is_capped(job):
        return Blocker("JobArrayTaskLimit")
    if key in state.remote.pending:
        return Blocker("Submitting")
    is_full = machine.stalled or len(state.running) >= machine.most_runs
    return _explain_full(state) if is_full else None


def spell_broken(wait: Wait, spec: Spec) -> str:
    """Which parent can never be met, in words."""
    assert wait.broken is not None
    is_for_failure = wait.broken in spec.depends_failure
    return f"job {label(wait.broken)} {'did not fail' if is_for_failure else 'did not succeed'}"


def spell_need(wait: Wait, parent: JobKey, spec: Spec) -> str:
    """What an active parent has not done yet, in words."""
    needs = wait.others.get(parent, 0)
    if parent not in wait.must_succeed and needs == START:
        return "has not started"
    if parent in spec.depends_earlier:
        return "of the same name is not over"
    return "is not over, and must fail" if needs & FAILURE else "is not over"


def _explain_full(state: State) -> Blocker:
    """Why no job at all can start here now."""
    machine = state.machine
    if machine.stalled:
        return Blocker("Resources", f"nothing can be started now: {machine.stalled}")
    return Blocker("Resources", f"{machine.most_runs} jobs run, for more the daemon has no file descriptors")


def _explain_remote(job: Job) -> Blocker:
    """The reason that the job's target reports."""
    if job.remote is not None and job.remote.hold:
        return Blocker(HELD.code)
    return Blocker(job.reason.code or "Submitting", job.reason.explanation)


def _explain_quota(state: State, job: Job, shape: Shape, at: Moment) -> Blocker | None:
    """The quota that delays the job, or the GPU reservations of other users on GPUs that are free."""
    if over := state.accounting.over_quota(job, state.policy):
        return Blocker("Quota", over)
    barred = state.reserved.barred(job, at.wall) if shape.gpus else NO_GPUS
    free = set(available(state, shape)) if barred else set()
    if len(free) < shape.gpus or len(free - barred) >= shape.gpus:
        return None
    kept = barred & free
    owners = {one.user for one in state.reserved.live if one.user != job.user and kept & set(one.gpus)}
    return reserved_for(state, sorted(kept), sorted(owners))


def reserved_for(state: State, gpus: Iterable[int], owners: Iterable[str]) -> Blocker:
    """The blocker for GPUs that are reserved for these users."""
    return Blocker(ReasonKind.RESERVED.value, spell_reserved(gpus, owners, state.policy.is_private))


def explain_shape(state: State, shape: Shape) -> Blocker:
    """What a ready job of this shape lacks now."""
    never = why_impossible(state, shape)
    if never:
        return Blocker("Resources", never)
    if shape.gpus:
        free = len(available(state, shape))
        if shape.gpus > free:
            only = f"Need {shape.gpus} GPUs, only {free} available" if free else ""
            return Blocker("Resources", "; ".join(filter(None, (only, _blockade(state, shape)))))
    if shape.cpus > state.machine.free_cpus:
        return Blocker(
            "Resources",
            f"Need {shape.cpus} CPUs, only {state.machine.free_cpus} free" if shape.cpus > 1 else "",
        )
    if shape.memory_mib > state.machine.free_memory_mib:
        return Blocker(
            "Resources",
            f"Need {gib(shape.memory_mib)} memory, only {gib(state.machine.free_memory_mib)} free",
        )
    return Blocker("Priority")


def _blockade(state: State, shape: Shape) -> str:
    """Why a GPU that no job holds is not available; empty: jobs hold all of them."""
    if state.machine.gpu_trouble:
        return state.machine.gpu_trouble
    for index, gpu in state.machine.gpus.items():
        why = (
            state.machine.closed(index) if index not in state.machine.holders and suits(gpu, shape) else None
        )
        if why is not None and why.kind != RESTRICTED:  # restricted on purpose
            return f"GPU {index} is {why}"
    return ""
