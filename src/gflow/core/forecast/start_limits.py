"""Lower bounds of starts: caps of groups, quotas, GPU reservations of other users, and scarce resources.

The queue simulation counts GPUs alone (of a job without GPUs, CPU slots), of all kinds together. A job at
such a limit starts when a running job that counts against the same limit ends. Cost: O(running jobs), and
O(log running jobs) for each waiting job at a limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import NamedTuple

from gflow.core.forecast.queue_simulation import AT_WORST, EXPECTED, Lengths, end_of
from gflow.core.forecast.queue_snapshot import Running
from gflow.core.ids import JobKey
from gflow.core.model import Job, Moment
from gflow.core.resources import Shape, slots_of
from gflow.core.state.queue_index import Group
from gflow.core.state.quotas import PROJECT, USER
from gflow.core.state.reservations import hard_s
from gflow.core.state.state import State

# How many jobs of its own class are placed before a job, at most.
MOST_BEFORE = 1000


class _Limit:
    """A number of units (jobs or GPUs) of which some are in use, and when these are given back."""

    def __init__(self, most: int, used: int, ends: list[tuple[float, int]]) -> None:
        self._most, self._used, self._ends = most, used, ends
        self._since = 0.0
        heapq.heapify(ends)

    def first(self, units: int) -> float:
        """The first time at which this many units are left; infinite: it is unknown."""
        if units > self._most:
            return inf
        while self._used + units > self._most:
            if not self._ends:
                return inf
            end, freed = heapq.heappop(self._ends)
            self._used -= freed
            self._since = max(self._since, end)
        return self._since

    def take(self, units: int, until: float) -> None:
        self._used += units
        heapq.heappush(self._ends, (until, units))


class Floors(NamedTuple):
    """The first times at which its limits let a job start (boot clock); infinite: it is unknown."""

    expected: float
    # If all jobs take as long as they may.
    at_worst: float


class StartLimits:
    """The limits of all waiting jobs at one time. Jobs are placed in the order of their starts."""

    def __init__(self, state: State, now: float, lengths: Lengths = EXPECTED) -> None:
        self._state, self._now, self._lengths = state, now, lengths
        last = state.start_reservations.at
        self._at = Moment(last.to_wall(now), now)
        self._limits: dict[tuple[str, object], _Limit] = {}
        self._ends: dict[tuple[str, object], list[tuple[float, Job]]] | None = None

    def place(self, job: Job, start: float, group: Group) -> float:
        """When this job of a group starts, not before `start`; infinite: it is unknown.

        From then on it counts against the limits of others.
        """
        limits = [*self._limits_of(job), *self._scarce_resources(job)]
        begin = max([start, *(limit.first(units) for limit, units in limits)])
        if begin < inf and self._state.reserved.live and job.spec.shape.gpus:
            begin = self._after_reservations(job, begin)
        if begin < inf:
            limit_s = group.key.limit_s if self._lengths.by_limits else 0
            length_s = limit_s or group.length * self._lengths.waiting
            for limit, units in limits:
                limit.take(units, begin + length_s)
        return begin

    def _limits_of(self, job: Job) -> Iterator[tuple[_Limit, int]]:
        """The limits that this job counts against, and for how many units."""
        state, spec = self._state, job.spec
        if spec.max_concurrent and spec.group:
            used = state.accounting.group_running.get(spec.group, 0)
            yield self._limit("group", spec.group, spec.max_concurrent, used), 1
        usages, usual = state.accounting.quota_usage, state.policy.most_running if job.uid else 0
        if not usual and not usages.is_limited:
            return
        for scope, name in ((USER, job.user), (PROJECT, spec.project)):
            limits, usage = usages.quotas.of(scope, name), usages.of(scope, name)
            most = limits.max_running_jobs
            most = usual if most is None and usual and scope == USER else most
            if most is not None:
                yield self._limit(scope, name, most, usage.jobs), 1
            if limits.max_running_gpus is not None and spec.gpus:
                yield self._limit(scope, name, limits.max_running_gpus, usage.gpus, "gpus"), spec.gpus

    def _scarce_resources(self, job: Job) -> Iterator[tuple[_Limit, int]]:
        """Resources of the job that the queue simulation does not count, and how much of each it needs."""
        machine, shape = self._state.machine, job.spec.shape
        if not is_scarce(self._state, shape):
            return
        if _is_of_rare_kind(self._state, shape):
            kind = "kind", (shape.gpu_type, shape.gpu_memory_mib)
            if kind not in self._limits:
                free_at = self._free_at(job)
                ends = [(end, 1) for end in free_at.values() if end > 0]
                self._limits[kind] = _Limit(len(free_at), len(ends), ends)
            yield self._limits[kind], shape.gpus
        if shape.gpus and shape.cpus > machine.free_cpus:
            yield self._resource("cpus", machine.cpus, machine.free_cpus), shape.cpus
        if shape.memory_mib > machine.free_memory_mib:
            yield self._resource("memory", machine.memory_mib, machine.free_memory_mib), shape.memory_mib

    def _resource(self, name: str, most: int, free: int) -> _Limit:
        """CPU slots or memory of the machine as a limit."""
        found = self._limits.get((name, ""))
        if found is None:
            ends = [
                (self._end(job.key), slots_of(job.spec) if name == "cpus" else job.spec.memory_mib)
                for job in self._state.running.values()
            ]
            found = self._limits[name, ""] = _Limit(most, most - free, ends)
        return found

    def _limit(self, scope: str, name: object, most: int, used: int, unit: str = "jobs") -> _Limit:
        key = f"{scope} {unit}", name
        found = self._limits.get(key)
        if found is None:
            ends = [
                (end, job.spec.gpus if unit == "gpus" else 1)
                for end, job in self._running().get((scope, name), ())
            ]
            found = self._limits[key] = _Limit(most, used, ends)
        return found

    def _running(self) -> dict[tuple[str, object], list[tuple[float, Job]]]:
        """Running jobs and their expected ends, by group, user and project."""
        if self._ends is None:
            self._ends = {}
            for job in self._state.running.values():
                end = self._end(job.key)
                for key in (("group", job.spec.group), (USER, job.user), (PROJECT, job.spec.project)):
                    self._ends.setdefault(key, []).append((end, job))
        return self._ends

    def _end(self, key: JobKey) -> float:
        job = self._state.running[key]
        if self._lengths is EXPECTED:
            return self._now if job.stopping else self._state.running.expected_end(job, self._now)
        return end_of(Running.of(self._state, job, self._now), self._now, self._lengths)

    def _after_reservations(self, job: Job, begin: float) -> float:
        """When enough GPUs are free that are not reserved for other users, not before `begin`."""
        reserved, at = self._state.reserved, self._at
        ends = [at.boot + one.end - at.wall for one in reserved.live if one.user != job.user]
        free_at = self._free_at(job)
        found = inf
        for time in sorted({begin, *(end for end in ends if end > begin)}):
            wall = at.to_wall(time)
            barred = {
                gpu for one in reserved.against(job.user, wall, wall + hard_s(job.spec)) for gpu in one.gpus
            }
            ready = sorted(free for gpu, free in free_at.items() if gpu not in barred)
            if len(ready) >= job.spec.gpus:
                found = min(found, max(time, ready[job.spec.gpus - 1]))
        return found

    def _free_at(self, job: Job) -> dict[int, float]:
        """When each GPU that suits the job is free."""
        machine, shape = self._state.machine, job.spec.shape
        holders = {} if shape.shared else machine.holders
        return {
            index: max(
                (self._end(key) for key in holders.get(index, ()) if key in self._state.running), default=0.0
            )
            for index in machine.fitting(shape)
        }


def is_scarce(state: State, shape: Shape) -> bool:
    """Whether the job needs resources that the queue simulation does not count: CPU slots and memory that are
    not free, or GPUs of a kind that not all are of.
    """
    machine = state.machine
    if shape.memory_mib > machine.free_memory_mib or (shape.gpus and shape.cpus > machine.free_cpus):
        return True
    return _is_of_rare_kind(state, shape)


def _is_of_rare_kind(state: State, shape: Shape) -> bool:
    """Whether some of the GPUs that jobs may get do not suit this one."""
    machine = state.machine
    return bool(shape.gpus) and not shape.shared and len(machine.fitting(shape)) < len(machine.usable)


def is_limited(state: State, job: Job) -> bool:
    """Whether a limit of this module may delay the job."""
    return (
        bool(job.spec.max_concurrent) or state.has_quotas_or_reservations or is_scarce(state, job.spec.shape)
    )


def earliest_start(state: State, job: Job, group: Group, now: float) -> Floors:
    """When its limits let this job start, after earlier jobs of its class in the queue (`group`)."""
    if not is_limited(state, job):
        return Floors(now, now)
    return Floors(*(_earliest_in(lengths, state, job, group, now) for lengths in (EXPECTED, AT_WORST)))


def _earliest_in(lengths: Lengths, state: State, job: Job, group: Group, now: float) -> float:
    """The same in one scenario."""
    limits = StartLimits(state, now, lengths)
    for key in islice(group.members, MOST_BEFORE):
        if key < job.key:
            limits.place(state.jobs[key], now, group)
    return limits.place(job, now, group)


def limit_starts(state: State, starts: dict[JobKey, float], now: float) -> dict[JobKey, float]:
    """Simulated starts of waiting jobs, delayed by their limits. A job with an unknown start has none."""
    limits, found = StartLimits(state, now), dict[JobKey, float]()
    for key, start in sorted(starts.items(), key=lambda one: (one[1], one[0])):
        job, group = state.jobs.get(key), state.ready.where.get(key)
        if job is not None and group is not None and is_limited(state, job):
            start = limits.place(job, start, group)
        if start < inf:
            found[key] = start
    return found
