"""Jobs that give way: who said --preemptible is stopped when somebody else needs its GPUs.

A preemptible job gives way to whoever has a higher priority, and to whoever has the same and is not
preemptible itself. It gets the stop contract and goes back into the queue, as a further attempt.
Whoever it makes way for is promised those GPUs meanwhile (`promise.due`), so that nobody slips in.

What it costs counts: of those that could give way, the ones that have done least since they started
do, for that is what may be lost; none more than needed, and none if it would not be enough.
"""

from __future__ import annotations

from gflow.core.effects import AddAuditEntry, Effect, Save, Stop
from gflow.core.model import PREEMPTED, Job, JobState, Moment
from gflow.core.scheduling.backfill import due, may_backfill
from gflow.core.scheduling.placement import choose
from gflow.core.state.queue import Walk
from gflow.core.state.queue_index import EVERYTHING
from gflow.core.state.state import State

# How many of those who wait are asked, the first in line first, and how many are looked at to find them.
MOST_ASKED, MOST_SEEN = 20, 500
# The GPUs that somebody gets, and who must make way.
Plan = tuple[tuple[int, ...], list[Job]]


def make_way(state: State, at: Moment, effects: list[Effect]) -> bool:
    """Stop preemptible jobs where that lets somebody start who comes before them; whether any had to."""
    if not state.preemptible or state.machine.is_drained or state.machine.stalled or not state.ready:
        return False
    # GPUs that are free or will be, and nobody counts on yet.
    free = state.machine.idle | {
        gpu for gpu, jobs in state.machine.holders.items() if all(map(state.is_stopping, jobs))
    }
    walk, stopped, asked = Walk(state.ready), False, 0
    for _ in range(MOST_SEEN):
        key = walk.next(EVERYTHING) if asked < MOST_ASKED else None
        if key is None:
            break
        job = state.jobs[key]
        walk.skip(job)
        if not _is_only_short_of_gpus(state, job):
            continue
        asked += 1
        plan = _plan(state, job, free)
        if plan is not None:
            gpu_ids, victims = plan
            free.difference_update(gpu_ids)
            for victim in victims:
                free.update(set(victim.gpu_ids).difference(gpu_ids))
                _stop(state, victim, job, effects)
                stopped = True
    walk.close()
    if stopped:
        state.promises = due(state, at.boot)
    return stopped


def gives_way(running: Job, waiting: Job) -> bool:
    """Whether the one must make way for the other."""
    return running.spec.preemptible and running.spec.standing < waiting.spec.standing


def _is_only_short_of_gpus(state: State, job: Job) -> bool:
    """Whether it would start if it had GPUs of its own."""
    shape = job.spec.shape
    if not shape.gpus or shape.shared or job.key in state.claimed:
        return False
    if state.is_capped(job) or state.over_quota(job):
        return False
    return choose(state, shape, 0, state.barred(job)) is None


def _plan(state: State, job: Job, free: set[int]) -> Plan | None:
    """GPUs for this job, and who must make way for it; None: it would not start all the same."""
    promised = {gpu for one in state.promises if one.key != job.key and one.binds(job) for gpu in one.gpus}
    return _plan_with(state, job, free) or (_plan_with(state, job, free - promised) if promised else None)


def _plan_with(state: State, job: Job, free: set[int]) -> Plan | None:
    """The same, if it may take what it can of these that are free."""
    shape = job.spec.shape
    usable = state.machine.fitting(shape) - state.barred(job)
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
    """Who makes way for so many GPUs; None: there are not enough of them."""
    chosen: list[Job] = []
    could = [one for key in state.preemptible if gives_way(one := state.running[key], job)]
    # What has run longest has most to lose: it comes last.
    could.sort(key=lambda one: (-(one.started_boot or 0.0), -one.key))
    for one in could:
        if lacking <= 0:
            break
        if one.stopping is None and (given := len(usable.intersection(one.gpu_ids))):
            chosen.append(one)
            lacking -= given
    if lacking > 0:
        return None
    for one in list(chosen):  # an earlier one may not be needed, if a later one gave many
        given = len(usable.intersection(one.gpu_ids))
        if lacking + given <= 0:
            chosen.remove(one)
            lacking += given
    return chosen


def _stop(state: State, victim: Job, job: Job, effects: list[Effect]) -> None:
    victim.stopping, victim.reason = JobState.QUEUED, f"{PREEMPTED}{job.label}"
    state.note_stop(victim)
    note = AddAuditEntry(victim.key, "preempted", f"makes way for job {job.label}")
    effects += (Save(victim), note, Stop(victim.key, victim.attempt))
