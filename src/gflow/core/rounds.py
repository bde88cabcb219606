"""Starting jobs: one round over the queue, or a try for the few jobs that are new in it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from gflow.core.effects import Effect, Note, Save, Start
from gflow.core.ids import job_key
from gflow.core.model import Job, JobState, Moment
from gflow.core.place import placement
from gflow.core.promise import due
from gflow.core.queue import GroupKey, Room, Walk
from gflow.core.state import State
from gflow.core.states import move


def run_round(state: State, at: Moment, effects: list[Effect]) -> None:
    """Start every job that may start now, in order. For events that may have freed something."""
    state.postpone(at.wall)
    _look_around(state, at)
    state.promise = due(state, at.wall)
    walk = Walk(state.ready)
    while (key := walk.next(_room(state))) is not None:
        job = state.jobs[key]
        gpu_ids = placement(state, job)
        if gpu_ids is None:
            walk.skip(job)
        elif not may_pass(state, job, gpu_ids):
            _skip(state, walk, job, gpu_ids)
        else:
            start(state, job, gpu_ids, at, effects)
            before, state.promise = state.promise, due(state, at.wall)
            if before is not None or state.promise is not None:
                walk = walk.again()  # who had to wait for a promise may not have to any more
    walk.close()


def _skip(state: State, walk: Walk, job: Job, gpu_ids: tuple[int, ...]) -> None:
    """This job would delay another; and with the same GPUs so would those in its lane, which run longer."""
    policy = state.policy
    same_gpus = policy.strategy == "sequential" and policy.order == "shortest"
    promise = state.promise
    if same_gpus and promise is not None and promise.is_blocked(gpu_ids):
        walk.skip_lane(job, state.jobs[promise.key])
    else:
        walk.skip(job)


def _look_around(state: State, at: Moment) -> None:
    """What time and ends have changed about the order."""
    state.history.pass_time(at.wall)
    if state.history.changed:
        state.ready.refresh()
    if state.policy.fair_share and len(state.shares.uses.keys() | state.ready.people.keys()) > 1:
        people = state.ready.people.keys() | {uid for uid, use in state.shares.uses.items() if use.gpus}
        state.ready.set_bands(state.shares.bands(people, len(state.gpus), at.wall))


def may_pass(state: State, job: Job, gpu_ids: tuple[int, ...]) -> bool:
    """Whether a start with these GPUs keeps what is promised to another job."""
    promise = state.promise
    if promise is None or not promise.binds(job):
        return True
    return state.policy.backfill and promise.allows(job.spec.shape, gpu_ids, state.ready.expected_s(job))


def start_among(state: State, keys: Iterable[GroupKey | None], at: Moment, effects: list[Effect]) -> None:
    """Start what may start of these groups, in order. For events that freed nothing: whoever
    waited before still waits, so only groups with newcomers need a look. O(groups + started)."""
    if not state.ready:
        return
    if state.promise is not None:
        state.promise.now = max(state.promise.now, at.wall)
    line = [state.ready.standing(key) for key in keys if key is not None]
    heapq.heapify(line)
    while line:
        if (
            state.promise is None and not state.policy.overtake
        ):  # whoever is first has one, also if it just came
            state.promise = due(state, at.wall)
        _, entry = heapq.heappop(line)
        job = state.jobs[entry.head]
        gpu_ids = placement(state, job)
        if gpu_ids is not None and may_pass(state, job, gpu_ids):
            start(state, job, gpu_ids, at, effects)
            if entry.group in state.ready.groups:
                heapq.heappush(line, state.ready.standing(entry.group))


def start(state: State, job: Job, gpu_ids: tuple[int, ...], at: Moment, effects: list[Effect]) -> None:
    """Start a job, or the next task of an array."""
    shape = job.spec.shape
    if (promise := state.promise) is not None:
        promise.take(shape, gpu_ids, state.ready.expected_s(job))
        if promise.key == job.key and not job.is_array:
            state.promise = None
    state.shares.started(job.uid, shape.gpus, shape.cpus, at.wall)
    if job.is_array:
        job = _next_task(state, job, at, effects)
    else:
        state.ready.remove(job)
    move(job, JobState.RUNNING)
    job.attempt += 1
    job.gpu_ids = gpu_ids
    job.simulated = any(state.gpus[index].simulated for index in gpu_ids)
    job.started_at = at.wall
    job.started_boot = at.boot
    job.exit_code = job.signal = None
    job.retry_at = 0.0
    state.book(job)
    detail = f"attempt {job.attempt}" + (f" on GPU {','.join(map(str, gpu_ids))}" if gpu_ids else "")
    effects += (Save(job), Note(job.key, "started", detail), Start(job.key, job.attempt))


def _next_task(state: State, array: Job, at: Moment, effects: list[Effect]) -> Job:
    """Split the first waiting task off an array, as a job of its own."""
    assert array.progress is not None
    tasks = array.progress.pending
    task = new_task(state, array, tasks.first)
    rest = tasks.without(tasks.first)
    array.progress = msgspec.structs.replace(array.progress, pending=rest, active=array.progress.active + 1)
    if array.started_at is None:
        array.attempt = 1
        array.started_at = at.wall
    if state.promise is not None and state.promise.key == array.key:
        state.pass_again(array)  # the promise was for one task: the next waits its turn
    if not rest:
        state.ready.remove(array)
        move(array, JobState.RUNNING)
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
    return Room(len(state.idle), len(state.open), state.free_cpus, state.free_memory_mib)
