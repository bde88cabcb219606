"""Starts that are promised: nobody waits for ever, however many pass.

Once a job has waited for many times what its work takes, it gets the earliest start that the running jobs'
expected ends allow. Until then others may start only if they are expected to be over by then, or
take what that job will not need (EASY backfilling). Jobs of a higher priority do not care.
"""

from __future__ import annotations

from typing import Any

from gflow.core.ids import JobKey
from gflow.core.lanes import Group
from gflow.core.model import Job, Shape
from gflow.core.prospect import Ends, Prospect
from gflow.core.state import NO_GPUS, State

# How many of the oldest are asked, if those before them wait for something else than resources.
MOST_ASKED = 20
# Nobody waits for more than this many times its own length; where this part of the machine is idle, for once.
MOST_TIMES = 6.0
QUIET = 2 / 3


# By what jobs ask for: type and memory of the GPUs, whether shared, those they may not have.
Prospects = dict[tuple[Any, ...], Prospect]


class Promise:
    """What one waiting job may count on: when, and what others must leave it then."""

    __slots__ = (
        "_count",
        "_gpus",
        "_line",
        "cpus",
        "group",
        "key",
        "memory_mib",
        "now",
        "spare",
        "standing",
        "until",
    )

    def __init__(self, key: JobKey, group: Group, prospect: Prospect, moment: Ends, now: float) -> None:
        shape = group.shape
        self.key, self.group = key, group
        self.standing = group.standing
        # When this was looked at last, and when the job is expected to start.
        self.now = now
        count, self.until, cpus, memory_mib = moment
        # GPUs it can have then (see `gpus`), how many of them it will not need, and what else is left over.
        self._line, self._count = prospect.gpus, count
        self._gpus: frozenset[int] | None = None
        self.spare = count - shape.gpus
        self.cpus = cpus - shape.cpus
        self.memory_mib = memory_mib - shape.memory_mib

    @property
    def gpus(self) -> frozenset[int]:
        """GPUs it can have then. Of many promises nobody asks."""
        found = self._gpus
        if found is None:
            found = self._gpus = frozenset(self._line[: self._count])
        return found

    def binds(self, job: Job) -> bool:
        """Whether this job has to care."""
        return job.spec.standing <= self.standing

    def is_blocked(self, gpu_ids: tuple[int, ...]) -> bool:
        """Whether it will need some of these GPUs."""
        spare = self.spare
        return len(gpu_ids) > spare and len(self.gpus.intersection(gpu_ids)) > spare

    def allows(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> bool:
        """Whether a job with these GPUs would be over in time, or in nobody's way."""
        return self.now + length <= self.until or (
            not self.is_blocked(gpu_ids)
            and shape.cpus <= max(0, self.cpus)
            and shape.memory_mib <= max(0, self.memory_mib)
        )

    def take(self, shape: Shape, gpu_ids: tuple[int, ...], length: float) -> None:
        """Such a job has started."""
        if self.now + length > self.until:
            gpus = self.gpus
            self.spare -= len(gpus.intersection(gpu_ids))
            self._gpus = gpus.difference(gpu_ids)
            self.cpus -= shape.cpus
            self.memory_mib -= shape.memory_mib


def may_pass(state: State, job: Job, gpu_ids: tuple[int, ...]) -> bool:
    """Whether a start with these GPUs keeps what is promised to others; the promised mind earlier ones."""
    promises = state.promises
    if not promises:
        return True
    ready, key, backfill = state.ready, job.key, state.policy.backfill
    group = ready.where.get(key)
    shape, standing = (job.spec.shape, job.spec.standing) if group is None else (group.shape, group.standing)
    length = ready.surely_s(job) if is_quiet(state) else ready.expected_s(job)
    for promise in promises:
        if promise.key == key:
            return True
        if standing <= promise.standing and not (backfill and promise.allows(shape, gpu_ids, length)):
            return False
    return True


def is_kept_for_some(state: State, gpu_ids: tuple[int, ...]) -> bool:
    """Whether somebody who is promised a start will need some of these GPUs."""
    for promise in state.promises:  # noqa: SIM110 - a loop takes half the time
        if promise.is_blocked(gpu_ids):
            return True
    return False


def due(state: State, wall: float) -> list[Promise]:
    """Promises to those who have waited longest, if that is long enough and they can be promised anything."""
    if state.machine.is_drained:
        return []
    prospects: Prospects = {}
    found = _made_way_for(state, wall, prospects) if state.yielding else []
    if state.policy.patience < 0:
        return found
    ready, most, quiet = state.ready, len(found) + state.policy.promises, is_quiet(state)
    made_way_for = {promise.key for promise in found} if found else ()
    kinds = sorted(ready.ages, key=_first) if len(ready.ages) > 1 else list(ready.ages)
    for kind in kinds:
        ages = ready.ages[kind]
        for place in range(MOST_ASKED):
            age = ages.at(place)
            if age is None:
                if not place:
                    del ready.ages[kind]
                break
            since, key, _, group = age
            if not _is_due(state, group, wall - since, quiet):
                break
            promise = None if key in made_way_for else _promise(state, key, group, wall, prospects)
            if promise is not None:
                found.append(promise)
                if len(found) == most:
                    return found
    return found


def _made_way_for(state: State, wall: float, prospects: Prospects) -> list[Promise]:
    """Those for whom running jobs make way: nobody else is to have what they get."""
    wait = {first for key in state.yielding.values() if (first := first_of(state, key)) is not None}
    made = [_promise(state, key, state.ready.where[key], wall, prospects) for key in sorted(wait)]
    return [promise for promise in made if promise is not None]


def first_of(state: State, key: JobKey) -> JobKey | None:
    """Who starts in place of this job, if it waits: the first of those like it, who may have come later."""
    job = state.jobs.get(key)
    return state.ready.group_of(job).head() if job is not None and job in state.ready else None


def _promise(state: State, key: JobKey, group: Group, wall: float, prospects: Prospects) -> Promise | None:
    """What can be promised to this job of that group, if anything can."""
    shape, barred = group.shape, NO_GPUS
    if state.is_ruled or group.key.max_concurrent:
        job = state.jobs[key]
        if state.is_capped(job) or state.over_quota(job):
            return None
        barred = state.barred(job)
    kind = (shape.gpu_type, shape.gpu_memory_mib, shape.shared, barred)
    prospect = prospects.get(kind)
    if prospect is None:
        prospect = prospects[kind] = Prospect(state, shape, wall, barred)
    moment = prospect.first_fit(shape)
    return None if moment is None else Promise(key, group, prospect, moment, wall)


def _first(kind: tuple[int, bool]) -> tuple[int, bool]:
    """Higher priorities first, and those with GPUs before those without."""
    return -kind[0], not kind[1]


def _is_due(state: State, group: Group, waited: float, quiet: bool) -> bool:
    """Whether a job has waited long enough."""
    return not state.policy.patience or waited >= times_of(state, group.shape, quiet) * group.length


def due_after_s(state: State, shape: Shape, length: float) -> float:
    """After which time such a job is promised its start: when the machine could have done its work often
    enough, but not after more than so many times its own length."""
    return times_of(state, shape, is_quiet(state)) * length


def times_of(state: State, shape: Shape, quiet: bool) -> float:
    """For how many times its own length such a job may have to wait."""
    machine, wanted = state.machine, shape.gpus
    pool = len(machine.gpus) if wanted else machine.cpus
    if not pool:
        return 0.0
    times, most = state.policy.patience * (wanted or shape.cpus) / pool, 1.0 if quiet else MOST_TIMES
    return times if times < most else most


def is_quiet(state: State) -> bool:
    """Whether most of the machine stands idle: then keeping it for somebody costs little."""
    machine = state.machine
    return state.policy.patience > 0 and len(machine.idle) >= QUIET * len(machine.gpus) > 0
