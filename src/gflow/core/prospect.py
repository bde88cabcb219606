"""What becomes free when, if running jobs end as expected."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job, Shape
from gflow.core.place import SLACK, suits
from gflow.core.state import State


class Ends(NamedTuple):
    """What is free at some moment, if running jobs end as expected."""

    at: float
    gpus: frozenset[int]
    cpus: int
    memory_mib: int


class Prospect:
    """For jobs that ask for one kind of GPU in one way. It is seen as far ahead as somebody asks."""

    def __init__(self, state: State, kind: Shape, wall: float, barred: frozenset[int]) -> None:
        self._state = state
        self._kind = kind
        if kind.shared:
            usable = state.machine.usable - barred
            self._usable = frozenset(index for index in usable if suits(state.machine.gpus[index], kind))
            free = [
                index for index in self._usable if self._is_free(index, state.machine.holders.get(index, {}))
            ]
        else:
            self._usable = state.machine.fitting(kind) - barred
            free = list(self._usable & state.machine.idle)
        # GPUs in the order in which they become free.
        self._gpus = free
        # Moments at which something ends, and then: how many of the GPUs are free, CPU slots, host memory.
        self._times: list[float] = []
        self._counts: list[int] = []
        self._others: list[tuple[int, int]] = []
        self._coming = self._moments(wall)

    def first_fit(self, shape: Shape) -> Ends | None:
        """When a job of this shape fits first; None: not even when all have ended."""
        if len(self._usable) < shape.gpus:
            return None
        place = bisect_left(self._counts, shape.gpus)
        while place < len(self._times) or next(self._coming, False):
            count, (cpus, memory) = self._counts[place], self._others[place]
            if count >= shape.gpus and cpus >= shape.cpus and memory >= shape.memory_mib:
                return Ends(self._times[place], frozenset(self._gpus[:count]), cpus, memory)
            place += 1
        return None

    def _moments(self, wall: float) -> Iterator[bool]:
        """One moment further each time. What should have ended by now ends now."""
        state, usable, alone = self._state, self._usable, not self._kind.shared
        cpus, memory, now = state.machine.free_cpus, state.machine.free_memory_mib, wall
        left: dict[int, dict[JobKey, int]] = {}
        for end, key in state.ends():
            if end > now:
                self._note(now, cpus, memory)
                yield True
                now = end
            job = state.running[key]
            spec = job.spec
            cpus += spec.slots
            memory += spec.memory_mib
            if alone and not spec.shared:
                self._gpus += [index for index in job.gpu_ids if index in usable]
            else:
                self._leave(job, left)
        self._note(now, cpus, memory)
        yield True

    def _note(self, now: float, cpus: int, memory: int) -> None:
        self._times.append(now)
        self._counts.append(len(self._gpus))
        self._others.append((cpus, memory))

    def _leave(self, job: Job, left: dict[int, dict[JobKey, int]]) -> None:
        """A job goes from GPUs on which there may be others."""
        for index in self._usable.intersection(job.gpu_ids):
            holders = left.get(index)
            if holders is None:
                holders = left[index] = dict(self._state.machine.holders[index])
            holders.pop(job.key, None)
            if index not in self._gpus and self._is_free(index, holders):
                self._gpus.append(index)

    def _is_free(self, index: int, holders: dict[JobKey, int]) -> bool:
        """Whether such a job could have this GPU beside these holders."""
        if holders and (not self._kind.shared or 0 in holders.values()):
            return False
        used = sum(holders.values()) + self._state.machine.taken.get(index, 0)
        return used + self._kind.gpu_memory_mib <= self._state.machine.gpus[index].memory_mib * SLACK
