"""Scheduling rounds: one pass over the whole queue, or an attempt for the few groups with new jobs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Save, Start, Withdraw
from gflow.core.ids import JobKey, job_key
from gflow.core.model import LOCAL, Job, Moment, RemoteState
from gflow.core.reasons import NO_REASON
from gflow.core.scheduling.backfill import (
    has_limited_reservation,
    head_of,
    length_against,
    may_backfill,
    refusing_reservation,
    reservations_due,
)
from gflow.core.scheduling.eviction import free_reserved
from gflow.core.scheduling.placement import placement
from gflow.core.scheduling.preemption import preempt
from gflow.core.state.queue import Walk
from gflow.core.state.queue_index import Group, Room
from gflow.core.state.state import State
from gflow.core.transitions import RUNNING, move


def run_round(state: State, at: Moment, effects: list[Effect]) -> None:
    """Start every job that may start now, in order. For events that may have freed resources."""
    state.postpone(at)
    state.start_reservations.at = at
    if state.reserved.live:
        state.reserved.pass_time(at.wall)
        free_reserved(state, effects)
    state.runtime_estimates.pass_time(at.boot)
    if state.ready:
        _refresh_order(state, at)
        state.start_reservations.entries = reservations_due(state, at)
        _start_all(state, at, effects)
        while state.running.preemptible and preempt(state, at, effects):
            _start_all(state, at, effects)  # the reservations changed: other jobs may backfill now
    else:
        state.ready.set_bands({})
        state.start_reservations.entries = []
    if state.remote.pending:  # last: a racing job that can start here does
        hand_over(state, at, effects)


def _start_all(state: State, at: Moment, effects: list[Effect]) -> None:
    """One pass over the queue, under the current start reservations."""
    walk, room = Walk(state.ready), _room(state)
    # Whether all jobs of a bucket would get the same GPUs, and later ones are expected to run longer.
    is_uniform = (
        state.policy.strategy == "sequential" and state.policy.order == "shortest" and not state.reserved.live
    )
    while (key := walk.next(room)) is not None:
        job = state.jobs[key]
        gpu_ids = placement(state, job, at)
        if gpu_ids is None:
            walk.skip(job)
        elif (refusing := refusing_reservation(state, job, gpu_ids)) is not None:
            if is_uniform and refusing.needs_any(gpu_ids):
                walk.skip_refused(job, refusing, state.start_reservations.entries)
            else:
                walk.skip(job)
        else:
            before = state.start_reservations.entries
            start(state, job, gpu_ids, at, effects)
            room = _room(state)
            if (
                not before
                or len(before) != len(state.start_reservations.entries)
                or has_limited_reservation(state, at)
            ):
                state.start_reservations.entries = reservations_due(state, at)
                if before or state.start_reservations.entries:
                    walk = walk.restart()  # jobs that a reservation blocked may start now
    walk.close()


def _refresh_order(state: State, at: Moment) -> None:
    """Update the order of the queue: changed runtime estimates, and the bands of fair share."""
    if state.runtime_estimates.changed:
        state.ready.refresh()
    if state.policy.fair_share:
        state.ready.set_bands(_bands(state, at.boot))


def _bands(state: State, now: float) -> dict[int, int]:
    """The bands of users with waiting or running jobs. No other user has one, as after a restart."""
    uses, waiting = state.accounting.fair_share.uses, state.ready.people.keys()
    if len(uses) < 2 and uses.keys() >= waiting:  # one user: nothing to compare
        return {}
    return state.accounting.fair_share.bands(
        waiting | {uid for uid, use in uses.items() if use.is_running}, now
    )


def start_among(state: State, groups: Iterable[Group | None], at: Moment, effects: list[Effect]) -> None:
    """Start the jobs of these groups that may start, in order. O(groups + jobs started).

    For events that free no resources: jobs that waited before still wait, so that only groups with new jobs
    are examined.
    """
    if state.ready:
        _start_groups(state, groups, at, effects)
    if state.remote.pending:
        hand_over(state, at, effects)


def _start_groups(state: State, groups: Iterable[Group | None], at: Moment, effects: list[Effect]) -> None:
    room = _room(state)
    new = [group for group in groups if group is not None]
    heap = [state.ready.position_of(group) for group in new if group.bucket.may_fit(room)]
    heapq.heapify(heap)
    needs_round = False
    # If none of them fits, reservations change only where a job that returns is the first of a group again.
    if heap or not state.start_reservations.entries or any(_has_new_first(group, at) for group in new):
        state.start_reservations.pass_time(at)
        needs_round = _refresh_reservations(state, at)
    while heap:
        _, (_, head, _, group) = heapq.heappop(heap)
        if not group.bucket.may_fit(_room(state)):
            continue
        job = state.jobs[head]
        gpu_ids = placement(state, job, at)
        if gpu_ids is not None and may_backfill(state, job, gpu_ids):
            needs_round = needs_round or state.start_reservations.has(job.key)
            start(state, job, gpu_ids, at, effects)
            needs_round = needs_round or has_limited_reservation(state, at)
            # An array that had a reservation waits in a new group (see `restart_wait`).
            rest = group if group.members else state.ready.where.get(head)
            if rest is not None:
                heapq.heappush(heap, state.ready.position_of(rest))
            if heap and not state.start_reservations.entries:
                state.start_reservations.entries = reservations_due(state, at)
    if needs_round or (state.running.preemptible and preempt(state, at, effects)):
        run_round(state, at, effects)  # jobs that a reservation blocked may start now


def _has_new_first(group: Group, at: Moment) -> bool:
    """Whether a job that waits from now on came before the others of its group."""
    head = group.head()
    return head is not None and len(group.members) > 1 and group.members[head] == at.boot


def _refresh_reservations(state: State, at: Moment) -> bool:
    """Look which jobs have reservations now; whether others had them before. A job that has waited enough
    since its reservation was made is due now, and binds more jobs."""
    entries, found = state.start_reservations.entries, reservations_due(state, at)
    if [(one.key, one.place) for one in found] == [(one.key, one.place) for one in entries]:
        return False
    state.start_reservations.entries = found
    return bool(entries)


def start_first(state: State, key: JobKey, at: Moment, effects: list[Effect]) -> None:
    """Start the job for which others were preempted, if it waits and fits now, before any other job."""
    state.postpone(at)
    head = head_of(state, key)
    if head is not None:
        job = state.jobs[head]
        gpu_ids = placement(state, job, at)
        if gpu_ids is not None and may_backfill(state, job, gpu_ids):
            start(state, job, gpu_ids, at, effects)


def hand_over(state: State, at: Moment, effects: list[Effect]) -> None:
    """Hand over to their targets the jobs that nothing here keeps waiting; an array in one piece."""
    if state.machine.is_drained:
        return
    for key in sorted(state.remote.pending):
        job = state.jobs[key]
        if not job.is_array and state.is_capped(job):
            continue
        state.remote.add(job)
        job.attempt += 1
        job.remote = RemoteState()
        job.reason = NO_REASON
        job.exit_code = job.signal = None
        job.set_retry_delay(0, at)
        note = AddAuditEntry(job.key, "handed over", f"attempt {job.attempt} to {job.target}")
        effects += (Save(job), note, Start(job.key, job.attempt))


def start(state: State, job: Job, gpu_ids: tuple[int, ...], at: Moment, effects: list[Effect]) -> None:
    """Start a job, or the next task of an array. A job that another target has is withdrawn first."""
    key, now = job.key, at.boot
    if key in state.remote.jobs:
        _charge_reservations(state, job, gpu_ids)
        state.keep_gpus(job, gpu_ids)
        effects += (Save(job), Withdraw(key, job.attempt))
        return
    has_reservation = bool(state.start_reservations.entries) and _charge_reservations(state, job, gpu_ids)
    group = state.ready.group_of(job)
    batch, shape = group.batch, group.shape
    state.accounting.fair_share.run(job.uid, shape, now)
    if state.eta_calibration.record.open:
        state.eta_calibration.started(key, now)
    if job.progress is not None:
        if has_reservation:
            state.restart_wait(job, now)  # the reservation was for one task: the next begins a new wait
        job = _next_task(state, job, at, effects)
    else:
        state.leave_queue(job)
        job.target = LOCAL
    move(job, RUNNING)
    job.attempt += 1
    job.gpu_ids = gpu_ids
    job.simulated = not state.machine.simulated.isdisjoint(gpu_ids)
    job.started_at, job.started_boot = at
    job.exit_code = job.signal = None
    if job.retry_boot:
        job.set_retry_delay(0, at)
    state.book(job, batch)
    key, attempt = job.key, job.attempt
    detail = f"attempt {attempt} on GPU {','.join(map(str, gpu_ids))}" if gpu_ids else f"attempt {attempt}"
    effects += (Save(job), AddAuditEntry(key, "started", detail), Start(key, attempt))


def _charge_reservations(state: State, job: Job, gpu_ids: tuple[int, ...]) -> bool:
    """Subtract a start from the reservations of other jobs; whether the job had a reservation itself."""
    shape, key = state.ready.shape_of(job), job.key
    has_reservation = False
    for reservation in state.start_reservations.entries:
        reservation.take(shape, gpu_ids, length_against(state, job, reservation))
        has_reservation = has_reservation or reservation.key == key
    if has_reservation:
        state.start_reservations.entries = [
            reservation for reservation in state.start_reservations.entries if reservation.key != key
        ]
    return has_reservation


def _next_task(state: State, array: Job, at: Moment, effects: list[Effect]) -> Job:
    """Split the first waiting task off an array, as a job of its own."""
    assert array.progress is not None
    tasks = array.progress.pending
    task = new_task(state, array, tasks.first)
    rest = tasks.without(tasks.first)
    array.progress = msgspec.structs.replace(array.progress, pending=rest, active=array.progress.active + 1)
    if array.started_at is None:
        array.attempt = 1
        array.started_at, array.started_boot = at
    if not rest:
        state.ready.remove(array)
        move(array, RUNNING)
    effects.append(Save(array))
    return task


def new_task(state: State, array: Job, task: int) -> Job:
    """A job for one task of an array."""
    job = Job(
        key=job_key(array.number, task),
        spec=array.spec,
        uid=array.uid,
        user=array.user,
        submitted_at=array.submitted_at,
        target=array.target,
    )
    state.add(job)
    return job


def _room(state: State) -> Room:
    machine = state.machine
    return Room(len(machine.idle), len(machine.open), machine.free_cpus, machine.free_memory_mib)
