"""Lower bounds of expected starts: caps of groups, quotas, and GPU reservations of other users.

The queue simulation counts GPUs alone. A job at such a limit starts when a running job that counts against
the same limit ends. Cost: O(running jobs), and O(log running jobs) for each waiting job at a limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from math import inf

from gflow.core.ids import JobKey
from gflow.core.model import Job, Moment
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


class StartLimits:
    """The limits of all waiting jobs at one time. Jobs are placed in the order of their starts."""

    def __init__(self, state: State, now: float) -> None:
        self._state, self._now = state, now
        last = state.start_reservations.at
        self._at = Moment(last.to_wall(now), now)
        self._limits: dict[tuple[str, object], _Limit] = {}
        self._ends: dict[tuple[str, object], list[tuple[float, Job]]] | None = None

    def place(self, job: Job, start: float, length_s: float) -> float:
        """When this job starts, not before `start`; infinite: it is unknown. It then counts itself."""
        limits = list(self._limits_of(job))
        begin = max([start, *(limit.first(units) for limit, units in limits)])
        if begin < inf and self._state.reserved.live and job.spec.shape.gpus:
            begin = self._after_reservations(job, begin)
        if begin < inf:
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
        return self._now if job.stopping else self._state.running.expected_end(job, self._now)

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


def is_limited(state: State, job: Job) -> bool:
    """Whether a limit of this module may delay the job."""
    return bool(job.spec.max_concurrent) or state.has_quotas_or_reservations


def earliest_start(state: State, job: Job, group: Group, now: float) -> float:
    """The first time at which its limits let this job start, after earlier jobs of its class (boot clock).

    Infinite: it is unknown. `group`: its equivalence class in the queue.
    """
    if not is_limited(state, job):
        return now
    limits = StartLimits(state, now)
    for key in islice(group.members, MOST_BEFORE):
        if key < job.key:
            limits.place(state.jobs[key], now, group.length)
    return limits.place(job, now, group.length)


def limit_starts(state: State, starts: dict[JobKey, float], now: float) -> dict[JobKey, float]:
    """Simulated starts of waiting jobs, delayed by their limits. A job with an unknown start has none."""
    limits, found = StartLimits(state, now), dict[JobKey, float]()
    for key, start in sorted(starts.items(), key=lambda one: (one[1], one[0])):
        job, group = state.jobs.get(key), state.ready.where.get(key)
        if job is not None and group is not None and is_limited(state, job):
            start = limits.place(job, start, group.length)
        if start < inf:
            found[key] = start
    return found
