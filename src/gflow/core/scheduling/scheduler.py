"""Starting jobs: one round over the queue, or a try for the few jobs that are new in it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Recall, Save, Start
from gflow.core.ids import JobKey, job_key
from gflow.core.model import LOCAL, Abroad, Job, Moment
from gflow.core.scheduling.backfill import due, first_of, is_kept_for_some, is_quiet, may_backfill, taken_for
from gflow.core.scheduling.eviction import free_reserved
from gflow.core.scheduling.placement import placement
from gflow.core.scheduling.preemption import make_way
from gflow.core.state.queue import Walk
from gflow.core.state.queue_index import Group, Room
from gflow.core.state.state import State
from gflow.core.transitions import RUNNING, move


def run_round(state: State, at: Moment, effects: list[Effect]) -> None:
    """Start every job that may start now, in order. For events that may have freed something."""
    state.postpone(at)
    state.wall, state.now = at
    if state.reserved.live:
        state.reserved.pass_time(at.wall)
        free_reserved(state, effects)
    state.history.pass_time(at.boot)
    if state.ready:
        _look_around(state, at)
        state.promises = due(state, at.boot)
        _start_all(state, at, effects)
        while state.preemptible and make_way(state, at, effects):
            _start_all(state, at, effects)  # what is promised has changed: somebody may pass now
    else:
        state.ready.set_bands({})
        state.promises = []
    if state.outbound:  # last: who races and can start here does
        hand_over(state, at, effects)


def _start_all(state: State, at: Moment, effects: list[Effect]) -> None:
    """One pass over the queue, under the promises that there are."""
    walk, room = Walk(state.ready), _room(state)
    # Whether all of a lane get the same GPUs, and those that come later run longer.
    alike = state.policy.strategy == "sequential" and state.policy.order == "shortest"
    while (key := walk.next(room)) is not None:
        job = state.jobs[key]
        gpu_ids = placement(state, job)
        if gpu_ids is None:
            walk.skip(job)
        elif not may_backfill(state, job, gpu_ids):
            if alike and not is_quiet(state) and is_kept_for_some(state, gpu_ids):
                walk.skip_lane(job, state.promises)  # it is kept from the rest of its lane too
            else:
                walk.skip(job)
        else:
            before, was_quiet = state.promises, is_quiet(state)
            start(state, job, gpu_ids, at, effects)
            room = _room(state)
            if not before or len(before) != len(state.promises) or (was_quiet and not is_quiet(state)):
                state.promises = due(state, at.boot)
                if before or state.promises:
                    walk = walk.again()  # who had to wait for a promise may not have to any more
    walk.close()


def _look_around(state: State, at: Moment) -> None:
    """What time and ends have changed about the order."""
    if state.history.changed:
        state.ready.refresh()
    if state.policy.fair_share:
        state.ready.set_bands(_bands(state, at.boot))


def _bands(state: State, now: float) -> dict[int, int]:
    """Of all who want or have something now; nobody else's is remembered, as after a restart."""
    uses, people = state.shares.uses, state.ready.people.keys()
    if len(uses) < 2 and uses.keys() >= people:  # one person, and nobody to compare with
        return {}
    return state.shares.bands(
        people | {uid for uid, use in uses.items() if use.gpus}, len(state.machine.gpus), now
    )


def start_among(state: State, groups: Iterable[Group | None], at: Moment, effects: list[Effect]) -> None:
    """Start what may start of these groups, in order. For events that freed nothing: whoever
    waited before still waits, so only groups with newcomers need a look. O(groups + started)."""
    if state.ready:
        _start_these(state, groups, at, effects)
    if state.outbound:
        hand_over(state, at, effects)


def _start_these(state: State, groups: Iterable[Group | None], at: Moment, effects: list[Effect]) -> None:
    state.wall, state.now = at
    now = at.boot
    for promise in state.promises:
        if promise.now < now:
            promise.now = now
    was_quiet = is_quiet(state)
    new = [group for group in groups if group is not None]
    is_kept = _look_for_due(state, new, now)
    room = _room(state)
    line = [state.ready.standing(group) for group in new if group.lane.may_fit(room)]
    heapq.heapify(line)
    while line:
        _, (_, head, _, group) = heapq.heappop(line)
        if not group.lane.may_fit(_room(state)):
            continue
        job = state.jobs[head]
        gpu_ids = placement(state, job)
        if gpu_ids is not None and may_backfill(state, job, gpu_ids):
            is_kept = is_kept or any(promise.key == job.key for promise in state.promises)
            start(state, job, gpu_ids, at, effects)
            if group.members:
                heapq.heappush(line, state.ready.standing(group))
            if line and not state.promises:
                state.promises = due(state, now)
    is_freer = is_kept or (was_quiet and bool(state.promises) and not is_quiet(state))
    if is_freer or (state.preemptible and make_way(state, at, effects)):
        run_round(state, at, effects)  # who had to wait for what is promised may not have to any longer


def _look_for_due(state: State, new: list[Group], now: float) -> bool:
    """Somebody like the newcomers may have waited long enough by now; whether others moved by that."""
    had = {promise.group.shape.gpus > 0 for promise in state.promises}
    if all((group.shape.gpus > 0) in had for group in new):
        return False
    found = due(state, now)
    if had and all((promise.group.shape.gpus > 0) in had for promise in found):
        return False
    state.promises = found
    return bool(had)


def start_first(state: State, key: JobKey, at: Moment, effects: list[Effect]) -> None:
    """Start the job for which others have made way, if it waits and fits now: nobody else is to have that."""
    state.postpone(at)
    first = first_of(state, key)
    if first is not None:
        job = state.jobs[first]
        state.wall, state.now = at
        gpu_ids = placement(state, job)
        if gpu_ids is not None and may_backfill(state, job, gpu_ids):
            start(state, job, gpu_ids, at, effects)


def hand_over(state: State, at: Moment, effects: list[Effect]) -> None:
    """Give other targets the jobs that wait for nothing here any more; an array as a whole."""
    if state.machine.is_drained:
        return
    for key in sorted(state.outbound):
        job = state.jobs[key]
        if not job.is_array and state.is_capped(job):
            continue
        state.send(job)
        job.attempt += 1
        job.abroad = Abroad()
        job.reason = ""
        job.exit_code = job.signal = None
        job.pause(0, at)
        note = AddAuditEntry(job.key, "handed over", f"attempt {job.attempt} to {job.target}")
        effects += (Save(job), note, Start(job.key, job.attempt))


def start(state: State, job: Job, gpu_ids: tuple[int, ...], at: Moment, effects: list[Effect]) -> None:
    """Start a job, or the next task of an array. One that another target has is first taken back."""
    key, spec, now = job.key, job.spec, at.boot
    if key in state.abroad:
        _reckon(state, job, gpu_ids)
        state.keep(job, gpu_ids)
        effects += (Save(job), Recall(key, job.attempt))
        return
    is_promised = bool(state.promises) and _reckon(state, job, gpu_ids)
    batch = state.ready.group_of(job).batch
    state.shares.run(job.uid, spec.gpus, now)
    if state.foretold.record.open:
        state.foretold.started(key, now)
    if job.progress is not None:
        if is_promised:
            state.wait_again(job, now)  # the promise was for one task: the next waits its turn
        job = _next_task(state, job, at, effects)
    else:
        state.leave_line(job)
        job.target = LOCAL
    move(job, RUNNING)
    job.attempt += 1
    job.gpu_ids = gpu_ids
    job.simulated = not state.machine.simulated.isdisjoint(gpu_ids)
    job.started_at, job.started_boot = at
    job.exit_code = job.signal = None
    if job.retry_boot:
        job.pause(0, at)
    state.book(job, batch)
    key, attempt = job.key, job.attempt
    detail = f"attempt {attempt} on GPU {','.join(map(str, gpu_ids))}" if gpu_ids else f"attempt {attempt}"
    effects += (Save(job), AddAuditEntry(key, "started", detail), Start(key, attempt))


def _reckon(state: State, job: Job, gpu_ids: tuple[int, ...]) -> bool:
    """What a start takes of what others are promised; whether it was promised itself."""
    shape, (bound, guess), key = state.ready.shape_of(job), state.ready.known_of(job), job.key
    is_promised = False
    for promise in state.promises:
        promise.take(shape, gpu_ids, taken_for(promise.caution, bound, guess))
        is_promised = is_promised or promise.key == key
    if is_promised:
        state.promises = [promise for promise in state.promises if promise.key != key]
    return is_promised


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
