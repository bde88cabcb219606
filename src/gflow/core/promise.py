"""Starts that are promised: nobody waits for ever, however many pass.

Once a job has waited for many times what its work takes, it gets the earliest start that the running jobs'
expected ends allow. Until then others may start only if they are expected to be over by then, or
take what that job will not need (EASY backfilling). Jobs of a higher priority do not care.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job, Shape
from gflow.core.place import SLACK, suits
from gflow.core.queue import Group
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
        return job.spec.priority <= self.priority

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


def due(state: State, wall: float) -> list[Promise]:
    """Promises to those who have waited longest, if that is long enough and they can be promised anything."""
    found: list[Promise] = []
    if state.policy.patience < 0 or state.machine.is_drained:
        return found
    ends: list[tuple[float, JobKey]] | None = None
    for priority, with_gpus in sorted(state.ready.ages, key=lambda age: (-age[0], not age[1])):
        for key, group in islice(state.ready.longest_waiting(priority, with_gpus), MOST_ASKED):
            if not _is_due(state, group, wall - group.members[key]):
                break
            job = state.jobs[key]
            if ends is None:
                ends = sorted((state.expected_end(one, wall), one.key) for one in state.running.values())
            if state.is_capped(job) or state.over_quota(job):
                continue
            if free := first_fit(state, group.key.shape, wall, ends, state.barred(job)):
                found.append(Promise(job, free, wall))
                if len(found) == state.policy.promises:
                    return found
    return found


def _is_due(state: State, group: Group, waited: float) -> bool:
    """Whether the machine could have done a job's work often enough while it waited."""
    patience = state.policy.patience
    if not patience:
        return True
    shape = group.key.shape
    wanted, pool = (shape.gpus, len(state.machine.gpus)) if shape.gpus else (shape.cpus, state.machine.cpus)
    return waited * pool >= patience * wanted * group.length


def first_fit(
    state: State,
    shape: Shape,
    wall: float,
    ends: list[tuple[float, JobKey]],
    barred: frozenset[int] = frozenset(),
) -> Ends | None:
    """When a job of this shape fits first, if running jobs end as expected; None: not even then."""
    usable = {index for index in state.machine.usable - barred if suits(state.machine.gpus[index], shape)}
    if len(usable) < shape.gpus:
        return None
    left: dict[int, dict[JobKey, int]] = {}
    free = {index for index in usable if _is_free(state, index, shape, state.machine.holders.get(index, {}))}
    cpus, memory, at = state.machine.free_cpus, state.machine.free_memory_mib, wall
    for end, key in ends:
        if len(free) >= shape.gpus and cpus >= shape.cpus and memory >= shape.memory_mib and at < end:
            break
        at = end
        job = state.running[key]
        of_job = job.spec.shape
        cpus += of_job.cpus
        memory += of_job.memory_mib
        for index in usable.intersection(job.gpu_ids):
            holders = left.get(index)
            if holders is None:
                holders = left[index] = dict(state.machine.holders[index])
            holders.pop(key, None)
            if _is_free(state, index, shape, holders):
                free.add(index)
    if len(free) < shape.gpus or cpus < shape.cpus or memory < shape.memory_mib:
        return None
    return Ends(at, frozenset(free), cpus, memory)


def _is_free(state: State, index: int, shape: Shape, holders: dict[JobKey, int]) -> bool:
    """Whether such a job could have this GPU beside these holders."""
    if holders and (not shape.shared or 0 in holders.values()):
        return False
    used = sum(holders.values()) + state.machine.taken.get(index, 0)
    return used + shape.gpu_memory_mib <= state.machine.gpus[index].memory_mib * SLACK
