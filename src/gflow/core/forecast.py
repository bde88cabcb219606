"""Why a waiting job waits, in full: every obstacle in order, when it will start, what would start now.

The expected start comes from playing the queue forward: running jobs end when they are expected to,
and those before the job start as soon as they fit. Only GPUs (or CPU slots) are looked at, and jobs
that are still to come are not known; so an interval is given, as wide as replays of public traces
were wrong (`benchmarks/why.py`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import islice
from math import inf

import msgspec

from gflow.core.explain import Why, explain, explain_shape, reserved_for
from gflow.core.ids import JobKey, label
from gflow.core.lanes import EVERYTHING, Group
from gflow.core.model import LOCAL, Job, JobState, Shape
from gflow.core.place import available, choose, suits
from gflow.core.promise import due_after_s, may_pass
from gflow.core.queue import Walk
from gflow.core.state import State

# Of a hundred jobs, eighty start between these parts of the wait that the forecast says, and not later
# than that much more. Where everything ahead has a time limit, these say the latest.
EARLY, LATE, SLACK_S = 0.05, 30.0, 1800.0
# How many starts are played forward at most.
FAR = 5000
# How many starts a listing tells.
LISTED = 1000


class Start(msgspec.Struct, frozen=True):
    """When a job will probably start (wall clock), with eight chances in ten between the other two."""

    expected: float
    earliest: float
    latest: float


class Outlook(msgspec.Struct, frozen=True):
    """All that can be said about a waiting job."""

    blockers: list[Why]
    start: Start | None
    # Options with which it would start now, each with what it means.
    instead: list[str]
    # Limits of its account on a cluster, in words, where they are in its way.
    limits: list[str] = []


def outlook(state: State, job: Job, wall: float) -> Outlook:
    """Of a job that waits; nothing is changed."""
    blockers = list(_blockers(state, job, wall))
    if job.state is not JobState.QUEUED or job not in state.ready:
        begin = job.begin_at if job.key in state.later else 0.0
        return Outlook(blockers, Start(begin, begin, begin) if begin > wall else None, [])
    return Outlook(blockers, expected_start(state, job, wall), list(_instead(state, job, wall)))


# ---------------------------------------------------------------- what is in the way


def _blockers(state: State, job: Job, wall: float) -> Iterator[Why]:
    if job.state is JobState.HOLD:
        yield Why(job.reason or "JobHeldUser", f"gjob release {job.label} lets it go on")
    if (wait := state.waits.get(job.key)) is not None:
        for parent in sorted(wait.parents):
            yield Why("Dependency", f"job {label(parent)} is not over")
    if job.key in state.abroad and (said := explain(state, job)):
        yield said  # nothing of this machine is in its way
        return
    if job.begin_at > wall:
        yield Why("RetryDelay" if job.retry_at > job.spec.begin_at else "BeginTime")
    if state.machine.is_drained:
        yield Why("Drained", state.machine.drained.everything or "")
    if state.is_capped(job):
        yield Why("JobArrayTaskLimit", f"{job.spec.max_concurrent} of its group run, and no more may")
    if over := state.over_quota(job):
        yield Why("Quota", over)
    if job.state is JobState.QUEUED and job.target == LOCAL:
        yield from _reserved(state, job)
        yield from _short_of(state, job, wall)


def _reserved(state: State, job: Job) -> Iterator[Why]:
    barred = state.barred(job)
    for one in state.reserved.live:
        if barred & set(one.gpus) and one.user != job.user:
            yield reserved_for(state, one.gpus, [one.user])


def _short_of(state: State, job: Job, wall: float) -> Iterator[Why]:
    """What it lacks, who has it, and who comes first."""
    shape = job.spec.shape
    lacks = explain_shape(state, shape)
    if lacks.code == "Resources":
        yield lacks
    if shape.gpus:
        holders = {
            key
            for index in state.machine.usable
            if suits(state.machine.gpus[index], shape)
            for key in state.machine.holders.get(index, ())
        }
        ends = sorted((state.expected_end(state.running[key], wall), key) for key in holders)
        for _, key in ends[:5]:
            other = state.running[key]
            yield Why("Running", f"job {other.label} has GPU {','.join(map(str, other.gpu_ids))}")
    for promise in state.promises:
        if promise.key == job.key:
            break
        if promise.binds(job):
            yield Why("Promise", f"job {label(promise.key)} has waited longer and is promised its start")
    if job in state.ready and (ahead := sum(count for _, count in _ahead(state, job))):
        yield Why("Priority", f"{ahead} job{'s come' if ahead > 1 else ' comes'} before it")


# ---------------------------------------------------------------- when


def _ahead(state: State, job: Job) -> list[tuple[Group, int]]:
    """Who stands before it, in order: of which group how many."""
    own = state.ready.group_of(job)
    mine = state.ready.standing(own)
    found = []
    for group in state.ready.groups.values():
        if group is own:
            before = sum(other < job.key for other in group.members)
            if before:
                found.append((mine, group, before))
        elif (standing := state.ready.standing(group)) < mine:
            found.append((standing, group, len(group.members)))
    found.sort(key=lambda one: one[0])
    return [(group, count) for _, group, count in found]


def expected_start(state: State, job: Job, wall: float) -> Start | None:
    """When the job starts if the queue goes on as it stands; None: not in sight."""
    found = _played(state, job, wall)
    for promise in state.promises:
        if promise.key == job.key:
            found = promise.until if found is None else min(found, promise.until)
    if found is None:
        return None
    waits = max(0.0, found - wall)
    bound = _played(state, job, wall, by_limits=True)
    if bound is None or bound == inf:
        bound = wall + LATE * max(waits, _patience(state, job, wall))
    return Start(found, wall + EARLY * waits, max(found, bound) + SLACK_S)


def _patience(state: State, job: Job, wall: float) -> float:
    """How long it takes until the job is promised its start: so long may others pass it."""
    length = state.ready.expected_s(job)
    if state.policy.patience < 0 or length == inf:
        return 0.0
    return max(0.0, job.ready_at + due_after_s(state, job.spec.shape, length) - wall)


def _played(state: State, job: Job, wall: float, *, by_limits: bool = False) -> float | None:
    """The queue played forward on GPUs alone, or on CPU slots for a job that asks for no GPU.

    `by_limits`: as if everything took as long as it may. Infinite where something may take any time.
    """
    shape = job.spec.shape
    with_gpus = shape.gpus > 0
    total = len(state.machine.usable) if with_gpus else state.machine.cpus
    if _size(shape, with_gpus) > total:
        return None
    free = len(state.machine.idle) if with_gpus else state.machine.free_cpus
    end_of = _last_end if by_limits else state.expected_end
    ends = [(end_of(one, wall), _size(one.spec.shape, with_gpus)) for one in state.running.values()]
    heapq.heapify(ends)
    line = [
        [_size(group.key.shape, with_gpus), count, (group.key.limit_s or inf) if by_limits else group.length]
        for group, count in _ahead(state, job)
        if 0 < _size(group.key.shape, with_gpus) <= total
    ]
    now, starts, mine = wall, 0, _size(shape, with_gpus)
    while starts < FAR:
        for one in line:
            size, count, length = one
            while count and size <= free:
                free -= int(size)
                count -= 1
                starts += 1
                heapq.heappush(ends, (now + length, int(size)))
            one[1] = count
        if mine <= free:
            return now
        line = [one for one in line if one[1]]
        if not ends:
            return None
        now, freed = heapq.heappop(ends)
        free += freed
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
    return None


def _last_end(job: Job, wall: float) -> float:
    """When a running job will be over at the latest."""
    limit = job.spec.time_limit_s
    return max(wall, (job.started_at or 0.0) + limit) if limit else inf


def expected_starts(state: State, wall: float) -> dict[JobKey, float]:
    """When those who wait will start if the queue goes on as it stands: the first in line, for a listing."""
    if state.machine.is_drained:
        return {}
    found = {**_line_played(state, wall, with_gpus=False), **_line_played(state, wall, with_gpus=True)}
    for promise in state.promises:
        found[promise.key] = min(found.get(promise.key, promise.until), promise.until)
    return found


def _line_played(state: State, wall: float, *, with_gpus: bool) -> dict[JobKey, float]:
    """The same play as `_played`, for all who ask for GPUs, or for all who do not."""
    total, free = (
        (len(state.machine.usable), len(state.machine.idle))
        if with_gpus
        else (state.machine.cpus, state.machine.free_cpus)
    )
    ends = [
        (state.expected_end(one, wall), _size(one.spec.shape, with_gpus)) for one in state.running.values()
    ]
    heapq.heapify(ends)
    # Of those that want as much, only the first can be the next.
    lines: dict[int, deque[tuple[int, JobKey, float]]] = {}
    for place, (key, group) in enumerate(_in_order(state, with_gpus)):
        size = _size(group.key.shape, with_gpus)
        if 0 < size <= total:
            lines.setdefault(size, deque()).append((place, key, group.length))
    found: dict[JobKey, float] = {}
    now = wall
    while lines and len(found) < LISTED:
        fitting = [size for size in lines if size <= free]
        if fitting:
            size = min(fitting, key=lambda one: lines[one][0])
            _, key, length = lines[size].popleft()
            found[key] = now
            free -= size
            heapq.heappush(ends, (now + length, size))
            if not lines[size]:
                del lines[size]
        elif ends:
            now, freed = heapq.heappop(ends)
            free += freed
        else:
            break
    return found


def _in_order(state: State, with_gpus: bool) -> Iterator[tuple[JobKey, Group]]:
    """The first who wait, in order."""
    walk, told = Walk(state.ready), 0
    while told < LISTED and (key := walk.next(EVERYTHING)) is not None:
        job = state.jobs[key]
        group = state.ready.group_of(job)
        walk.skip(job)
        if with_gpus == (group.key.shape.gpus > 0):
            for member in islice(group.members, LISTED - told):
                told += 1
                yield member, group
    walk.close()


def _size(shape: Shape, with_gpus: bool) -> int:
    return shape.gpus if with_gpus else shape.cpus


# ---------------------------------------------------------------- what else would do


def _instead(state: State, job: Job, wall: float) -> Iterator[str]:
    """Changes with which it would start now."""
    if state.machine.is_drained or state.is_capped(job) or state.over_quota(job):
        return
    shape, barred = job.spec.shape, state.barred(job)
    for gpus in range(shape.gpus - 1, 0, -1):
        ids = choose(state, shape._replace(gpus=gpus), 0, barred)
        if ids is not None and may_pass(state, job, ids):
            yield f"--gpus {gpus}"
            break
    if shape.gpus and shape.gpu_type and choose(state, shape._replace(gpu_type=""), 0, barred):
        yield "without --gpu-type"
    if len(available(state, shape)) >= shape.gpus:
        if (
            shape.cpus > state.machine.free_cpus
            and choose(state, shape._replace(cpus=state.machine.free_cpus), 0, barred) is not None
        ):
            yield f"--cpus {state.machine.free_cpus}"
        lacking = shape.memory_mib > state.machine.free_memory_mib
        if (
            lacking
            and choose(state, shape._replace(memory_mib=state.machine.free_memory_mib), 0, barred) is not None
        ):
            yield f"--memory {state.machine.free_memory_mib}M"
        ids = choose(state, shape, 0)
        if ids is not None and (most := _short_enough(state, job, ids, wall)) >= 60:
            yield f"--time {int(most // 60)}"


def _short_enough(state: State, job: Job, gpu_ids: tuple[int, ...], wall: float) -> float:
    """How long it might run at most in order to be in nobody's way; 0: that is not what keeps it."""
    until = [one.until for one in state.promises if one.binds(job) and one.key != job.key]
    until += [
        one.start for one in state.reserved.live if one.user != job.user and set(one.gpus) & set(gpu_ids)
    ]
    return max(0.0, min(until) - wall) if until else 0.0
