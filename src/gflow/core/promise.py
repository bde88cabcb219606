"""A start that is promised: nobody waits for ever, however many pass.

Once enough of the queue has passed a job, it gets the earliest start that the running jobs'
expected ends allow. Until then others may start only if they are expected to be over by then, or
take what that job will not need (EASY backfilling). Jobs of a higher priority do not care.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job, Shape
from gflow.core.place import SLACK, suits
from gflow.core.state import State

# How many of the oldest are asked, if those before them wait for something else than resources.
MOST_ASKED = 20


class Promise:
    """What one waiting job may count on: when, and what others must leave it then."""

    __slots__ = ("cpus", "gpus", "key", "memory_mib", "now", "priority", "spare", "until")

    def __init__(self, job: Job, ends: Ends, now: float) -> None:
        shape = job.spec.shape
        self.key = job.key
        self.priority = job.spec.priority
        # When this was looked at last, and when the job is expected to start.
        self.now = now
        self.until = ends.at
        # GPUs it can have then, how many of them it will not need, and what else is left over.
        self.gpus = ends.gpus
        self.spare = len(ends.gpus) - shape.gpus
        self.cpus = ends.cpus - shape.cpus
        self.memory_mib = ends.memory_mib - shape.memory_mib

    def binds(self, job: Job) -> bool:
        """Whether this job has to care."""
        return job.spec.priority <= self.priority and job.key != self.key

    def is_blocked(self, gpu_ids: tuple[int, ...]) -> bool:
        """Whether it will need some of these GPUs."""
        return len(self.gpus.intersection(gpu_ids)) > self.spare

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
            self.spare -= len(self.gpus.intersection(gpu_ids))
            self.gpus = self.gpus.difference(gpu_ids)
            self.cpus -= shape.cpus
            self.memory_mib -= shape.memory_mib


class Ends(NamedTuple):
    """What is free at some moment, if running jobs end as expected."""

    at: float
    gpus: frozenset[int]
    cpus: int
    memory_mib: int


def due(state: State, wall: float) -> Promise | None:
    """The promise of the job that was passed most, if it was passed enough and can be promised anything."""
    if state.policy.overtake < 0 or state.is_drained:
        return None
    for priority, with_gpus in sorted(state.ready.ages, key=lambda age: (-age[0], not age[1])):
        for key in islice(state.ready.most_passed(priority, with_gpus), MOST_ASKED):
            job = state.jobs[key]
            if not _is_due(state, job):
                break
            if not state.is_capped(job) and (ends := first_fit(state, job.spec.shape, wall)):
                return Promise(job, ends, wall)
    return None


def _is_due(state: State, job: Job) -> bool:
    with_gpus = job.spec.gpus > 0
    pool = max(1, len(state.gpus) if with_gpus else state.cpus)
    budget = state.policy.overtake * pool
    return not budget or state.shares.passed[not with_gpus] - job.passed >= budget


def first_fit(state: State, shape: Shape, wall: float) -> Ends | None:
    """When a job of this shape fits first, if running jobs end as expected; None: not even then."""
    usable = [index for index in state.usable if suits(state.gpus[index], shape)]
    holders = {index: dict(state.holders.get(index, ())) for index in usable}
    free = {index for index in usable if _is_free(state, index, shape, holders[index])}
    cpus, memory, at = state.free_cpus, state.free_memory_mib, wall
    ends = sorted((state.expected_end(job, wall), job.key) for job in state.running.values())
    for end, key in ends:
        if len(free) >= shape.gpus and cpus >= shape.cpus and memory >= shape.memory_mib and at < end:
            break
        at = end
        job = state.running[JobKey(key)]
        cpus += job.spec.shape.cpus
        memory += job.spec.shape.memory_mib
        for index in job.gpu_ids:
            if index in holders:
                holders[index].pop(job.key, None)
                if _is_free(state, index, shape, holders[index]):
                    free.add(index)
    if len(free) < shape.gpus or cpus < shape.cpus or memory < shape.memory_mib:
        return None
    return Ends(at, frozenset(free), cpus, memory)


def _is_free(state: State, index: int, shape: Shape, holders: dict[JobKey, int]) -> bool:
    """Whether such a job could have this GPU beside these holders."""
    if holders and (not shape.shared or 0 in holders.values()):
        return False
    used = sum(holders.values()) + state.taken.get(index, 0)
    return used + shape.gpu_memory_mib <= state.gpus[index].memory_mib * SLACK
