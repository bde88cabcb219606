"""A model of Slurm's scheduler for comparisons: multifactor priority and backfill with reservations by time limits.

The model follows the documentation of `priority/multifactor` and `sched/backfill`: the priority of a job is the
fair-share factor of its user, 2 ** (-usage / share), plus its age; usage decays with a half-life of a week and bills
GPUs, and CPU slots as a part of the machine. In order of priority every job starts or, for the first ten that do not
fit, gets the earliest start that time limits allow. A later job starts only if it delays none of these.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from benchmarks.fair_workload import Machine, Request

HALF_LIFE_S = 7 * 86400.0
# Weights of the factors, and the age at which its factor is 1.
FAIR_SHARE_WEIGHT, AGE_WEIGHT, FULL_AGE_S = 10_000.0, 1_000.0, 7 * 86400.0
# Reservations of a backfill pass, and the jobs that a pass looks at.
RESERVATIONS, MOST_TESTED = 10, 1_000


class Running(NamedTuple):
    end: float
    limit_end: float
    index: int
    request: Request


class SlurmModel:
    """The queue, the running jobs, and each user's decayed usage."""

    def __init__(self, requests: list[Request], machine: Machine) -> None:
        self._requests, self._machine = requests, machine
        self.starts = [-1.0] * len(requests)
        self._waiting: dict[int, Request] = {}
        self._running: dict[int, Running] = {}
        self._ends: list[tuple[float, int]] = []
        self._usage: dict[str, float] = dict.fromkeys({request.user for request in requests}, 0.0)
        self._now = 0.0

    def run(self) -> list[float]:
        """The start time of each request."""
        index, count = 0, len(self._requests)
        while index < count or self._ends:
            submit = self._requests[index].submit if index < count else float("inf")
            end = self._ends[0][0] if self._ends else float("inf")
            self._pass_time(min(submit, end))
            while self._ends and self._ends[0][0] <= self._now:
                del self._running[heapq.heappop(self._ends)[1]]
            while index < count and self._requests[index].submit <= self._now:
                self._waiting[index] = self._requests[index]
                index += 1
            self._schedule()
        return self.starts

    def _pass_time(self, now: float) -> None:
        """Bill the running jobs and decay what was used."""
        passed, self._now = now - self._now, now
        factor = 0.5 ** (passed / HALF_LIFE_S)
        for user in self._usage:
            self._usage[user] *= factor
        for running in self._running.values():
            self._usage[running.request.user] += self._machine.share(running.request) * passed

    def _priority(self, request: Request) -> float:
        total = sum(self._usage.values())
        part = self._usage[request.user] / total if total else 0.0
        fair = 2.0 ** (-part * len(self._usage))
        age = min(1.0, (self._now - request.submit) / FULL_AGE_S)
        return FAIR_SHARE_WEIGHT * fair + AGE_WEIGHT * age

    def _schedule(self) -> None:
        profile = Profile(self._machine, self._now, list(self._running.values()))
        order = sorted(self._waiting, key=lambda index: (-self._priority(self._waiting[index]), index))
        refused: set[tuple[object, ...]] = set()
        reserved = 0
        for index in order[:MOST_TESTED]:
            request = self._waiting[index]
            what = (request.gpus, request.kind, request.cpus, request.slurm_limit)
            if what in refused and reserved >= RESERVATIONS:
                continue
            at = profile.first_fit(request, must_be_now=reserved >= RESERVATIONS)
            if at is None:
                refused.add(what)
                continue
            profile.take(request, at)
            if at > self._now:
                refused.add(what)
                reserved += 1
                continue
            del self._waiting[index]
            self.starts[index] = self._now
            running = Running(self._now + request.duration, self._now + request.slurm_limit, index, request)
            self._running[index] = running
            heapq.heappush(self._ends, (running.end, index))


class Profile:
    """Free resources from each step's time until the next step's, if running jobs use their whole limits."""

    def __init__(self, machine: Machine, now: float, running: list[Running]) -> None:
        free = dict(machine.gpus)
        free[""] = machine.cpus
        for one in running:
            free[one.request.kind] -= one.request.gpus
            free[""] -= one.request.cpus
        self._times, self._free = [now], [free]
        for one in sorted(running, key=lambda one: one.limit_end):
            self._split(max(now, one.limit_end))
            after = self._times.index(max(now, one.limit_end))
            for later in self._free[after:]:
                later[one.request.kind] += one.request.gpus
                later[""] += one.request.cpus

    def first_fit(self, request: Request, *, must_be_now: bool) -> float | None:
        """The first time from which the request fits for its limit; None: never, or not now if it must."""
        for index, at in enumerate(self._times if not must_be_now else self._times[:1]):
            if all(
                self._has_room(later, request) for later in self._between(index, at + request.slurm_limit)
            ):
                return at
        return None

    def take(self, request: Request, at: float) -> None:
        end = at + request.slurm_limit
        self._split(at)
        self._split(end)
        for index, time in enumerate(self._times):
            if at <= time < end:
                self._free[index][request.kind] -= request.gpus
                self._free[index][""] -= request.cpus

    def _between(self, index: int, end: float) -> list[dict[str, int]]:
        found = []
        while index < len(self._times) and self._times[index] < end:
            found.append(self._free[index])
            index += 1
        return found

    def _has_room(self, free: dict[str, int], request: Request) -> bool:
        return free[request.kind] >= request.gpus and free[""] >= request.cpus

    def _split(self, at: float) -> None:
        """Make a step begin at this time."""
        for index, time in enumerate(self._times):
            if time == at:
                return
            if time > at:
                self._times.insert(index, at)
                self._free.insert(index, dict(self._free[index - 1]))
                return
        self._times.append(at)
        self._free.append(dict(self._free[-1]))
