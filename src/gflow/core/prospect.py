"""What becomes free when, if running jobs end as expected."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from gflow.core.ids import JobKey
from gflow.core.model import Shape
from gflow.core.place import SLACK, suits
from gflow.core.state import State

# What is free at some moment, if running jobs end as expected: when, GPUs, CPU slots, host memory.
Ends = tuple[float, frozenset[int], int, int]


class Prospect:
    """For jobs that ask for one kind of GPU in one way. It is seen as far ahead as somebody asks."""

    def __init__(self, state: State, kind: Shape, wall: float, barred: frozenset[int]) -> None:
        if kind.shared:
            usable = state.machine.usable - barred
            self._usable = frozenset(index for index in usable if suits(state.machine.gpus[index], kind))
            held = state.machine.holders
            free = [index for index in self._usable if _is_free(state, kind, index, held.get(index, {}))]
        else:
            fitting = state.machine.fitting(kind)
            self._usable = fitting - barred if barred else fitting
            free = list(self._usable & state.machine.idle)
        # GPUs in the order in which they become free.
        self._gpus = free
        # Moments at which something ends: how many of the GPUs are free then, when, CPU slots, host memory.
        self._seen: list[tuple[int, float, int, int]] = []
        # It knows nothing of us: what goes in circles is not freed before somebody looks for circles.
        self._coming = _moments(state, kind, self._usable, self._gpus, self._seen, wall)

    def first_fit(self, shape: Shape) -> Ends | None:
        """When a job of this shape fits first; None: not even when all have ended."""
        wanted, seen = shape.gpus, self._seen
        if len(self._usable) < wanted:
            return None
        for count, at, cpus, memory in chain(seen[bisect_left(seen, (wanted,)) :], self._coming):
            if count >= wanted and cpus >= shape.cpus and memory >= shape.memory_mib:
                return at, frozenset(self._gpus[:count]), cpus, memory
        return None


def _moments(
    state: State,
    kind: Shape,
    usable: frozenset[int],
    gpus: list[int],
    seen: list[tuple[int, float, int, int]],
    wall: float,
) -> Iterator[tuple[int, float, int, int]]:
    """One moment further each time. What should have ended by now ends now."""
    cpus, memory, now = state.machine.free_cpus, state.machine.free_memory_mib, wall
    alone, note, running = not kind.shared, seen.append, state.running
    left: dict[int, dict[JobKey, int]] = {}
    for end, key in state.ends():
        if end > now:
            moment = (len(gpus), now, cpus, memory)
            note(moment)
            yield moment
            now = end
        job = running[key]
        spec = job.spec
        cpus += spec.slots
        memory += spec.memory_mib
        if alone and not spec.shared:
            gpus += [index for index in job.gpu_ids if index in usable]
        else:
            for index in usable.intersection(job.gpu_ids):
                holders = left.get(index)
                if holders is None:
                    holders = left[index] = dict(state.machine.holders[index])
                holders.pop(job.key, None)
                if index not in gpus and _is_free(state, kind, index, holders):
                    gpus.append(index)
    moment = (len(gpus), now, cpus, memory)
    note(moment)
    yield moment


def _is_free(state: State, kind: Shape, index: int, holders: dict[JobKey, int]) -> bool:
    """Whether such a job could have this GPU beside these holders."""
    if holders and (not kind.shared or 0 in holders.values()):
        return False
    used = sum(holders.values()) + state.machine.taken.get(index, 0)
    return used + kind.gpu_memory_mib <= state.machine.gpus[index].memory_mib * SLACK
