"""Preemption: a job with --preemptible is stopped when a job of higher precedence needs its GPUs.

Higher precedence is a higher priority, or the same priority without --preemptible. The victim gets the stop
contract and returns to the queue, as a further attempt. Meanwhile the job that preempts has a start
reservation (`backfill.reservations_due`), so that no other job takes those GPUs.

Of the possible victims, those that started last are stopped: they lose the least work. No more are stopped
than needed, and none if all of them together would not be enough.
"""

from __future__ import annotations

from gflow.core.effects import AddAuditEntry, Effect, Save, Stop
from gflow.core.model import Job, JobState, Moment
from gflow.core.reasons import Reason, ReasonKind
from gflow.core.scheduling.backfill import may_backfill, reservations_due
from gflow.core.scheduling.placement import choose
from gflow.core.state.queue import Walk
from gflow.core.state.queue_index import EVERYTHING
from gflow.core.state.state import State

# Upper limits of one search, in queue order: waiting jobs that lack GPUs only, and waiting jobs scanned in
# all.
MAX_CANDIDATES, MAX_SCANNED = 20, 500
# The GPUs that a waiting job gets, and the victims.
Plan = tuple[tuple[int, ...], list[Job]]


def preempt(state: State, at: Moment, effects: list[Effect]) -> bool:
    """Stop preemptible jobs where that lets a job of higher precedence start; whether any was stopped."""
    if not state.running.preemptible or state.machine.is_drained or state.machine.stalled or not state.ready:
        return False
    # GPUs that are free or are being freed, and that no job of this pass has been planned on.
    free = state.machine.idle | {
        gpu for gpu, jobs in state.machine.holders.items() if all(map(state.running.is_stopping, jobs))
    }
    walk, stopped, candidates = Walk(state.ready), False, 0
    for _ in range(MAX_SCANNED):
        key = walk.next(EVERYTHING) if candidates < MAX_CANDIDATES else None
        if key is None:
            break
        job = state.jobs[key]
        walk.skip(job)
        if not _lacks_only_gpus(state, job, at):
            continue
        candidates += 1
        plan = _plan(state, job, free, at)
        if plan is not None:
            gpu_ids, victims = plan
            free.difference_update(gpu_ids)
            for victim in victims:
                free.update(set(victim.gpu_ids).difference(gpu_ids))
                _stop(state, victim, job, effects)
                stopped = True
    walk.close()
    if stopped:
        state.start_reservations.entries = reservations_due(state, at)
    return stopped


def may_preempt(running: Job, waiting: Job) -> bool:
    """Whether the waiting job may preempt the running one."""
    return running.spec.preemptible and running.spec.precedence < waiting.spec.precedence


def _lacks_only_gpus(state: State, job: Job, at: Moment) -> bool:
    """Whether the job would start if it had GPUs; jobs that share GPUs do not preempt."""
    shape = job.spec.shape
    if not shape.gpus or shape.shared or state.is_claimed(job):
        return False
    if state.is_capped(job) or state.accounting.over_quota(job, state.policy):
        return False
    return choose(state, shape, 0, state.reserved.barred(job, at.wall)) is None


def _plan(state: State, job: Job, free: set[int], at: Moment) -> Plan | None:
    """GPUs for this job and its victims; None: no preemption lets it start."""
    reserved = {
        gpu
        for one in state.start_reservations.entries
        if one.key != job.key and one.blocks(state.ready.place_of(job))
        for gpu in one.gpus
    }
    found = _plan_with(state, job, free, at)
    return found or (_plan_with(state, job, free - reserved, at) if reserved else None)


def _plan_with(state: State, job: Job, free: set[int], at: Moment) -> Plan | None:
    """The same, if the job may use these free GPUs."""
    shape = job.spec.shape
    usable = state.machine.fitting(shape) - state.reserved.barred(job, at.wall)
    have = usable & free
    victims = _victims(state, job, usable, shape.gpus - len(have))
    if victims is None:
        return None
    more = usable.intersection(gpu for victim in victims for gpu in victim.gpu_ids)
    gpu_ids = tuple(sorted((*have, *more), key=lambda gpu: (gpu not in state.machine.idle, gpu)))[
        : shape.gpus
    ]
    cpus = state.machine.free_cpus + sum(victim.spec.slots for victim in victims)
    memory = state.machine.free_memory_mib + sum(victim.spec.memory_mib for victim in victims)
    fits = shape.cpus <= cpus and shape.memory_mib <= memory
    return (gpu_ids, victims) if fits and may_backfill(state, job, gpu_ids) else None


def _victims(state: State, job: Job, usable: frozenset[int], lacking: int) -> list[Job] | None:
    """The jobs to stop to free `lacking` more of the usable GPUs; None: there are not enough."""
    chosen: list[Job] = []
    candidates = [one for key in state.running.preemptible if may_preempt(one := state.running[key], job)]
    # The job that has run longest loses most: it comes last.
    candidates.sort(key=lambda one: (-(one.started_boot or 0.0), -one.key))
    for one in candidates:
        if lacking <= 0:
            break
        if one.stopping is None and (freed := len(usable.intersection(one.gpu_ids))):
            chosen.append(one)
            lacking -= freed
    if lacking > 0:
        return None
    for one in list(chosen):  # an earlier victim may not be needed if a later one frees many GPUs
        freed = len(usable.intersection(one.gpu_ids))
        if lacking + freed <= 0:
            chosen.remove(one)
            lacking += freed
    return chosen


def _stop(state: State, victim: Job, job: Job, effects: list[Effect]) -> None:
    victim.stopping, victim.reason = JobState.QUEUED, Reason(ReasonKind.PREEMPTED, job=job.key)
    state.running.note_stop(victim)
    note = AddAuditEntry(victim.key, "preempted", f"makes way for job {job.label}")
    effects += (Save(victim), note, Stop(victim.key, victim.attempt))
