"""What becomes free when, if running jobs end as expected."""

from __future__ import annotations

from bisect import bisect_left

from gflow.core.ids import JobKey
from gflow.core.model import Shape
from gflow.core.place import SLACK, suits
from gflow.core.state import State
from gflow.core.timetable import Leaver

# A moment: how many of the GPUs are free then, when that is, CPU slots, host memory.
Ends = tuple[int, float, int, int]


class Prospect:
    """For jobs that ask for one kind of GPU in one way. It is seen as far ahead as somebody asks."""

    def __init__(self, state: State, kind: Shape, wall: float, barred: frozenset[int]) -> None:
        self._state, self._kind = state, kind
        machine = state.machine
        if kind.shared:
            usable = machine.usable - barred
            self._usable = frozenset(index for index in usable if suits(machine.gpus[index], kind))
            held = machine.holders
            free = [index for index in self._usable if _is_free(state, kind, index, held.get(index, {}))]
        else:
            fitting = machine.fitting(kind)
            self._usable = fitting - barred if barred else fitting
            free = list(self._usable & machine.idle)
        # GPUs in the order in which they become free.
        self.gpus = free
        # Moments at which something ends, as far as somebody has asked.
        self._seen: list[Ends] = []
        # Those who leave, the next of them, what is free when all before it have left; whether that is all.
        self._coming, self._next, self._now, self._is_all = state.ends(), 0, wall, False
        self._cpus, self._memory_mib = machine.free_cpus, machine.free_memory_mib
        # Who has GPUs that are shared, less those who have left.
        self._held: dict[int, dict[JobKey, int]] = {}

    def first_fit(self, shape: Shape) -> Ends | None:
        """When a job of this shape fits first; None: not even when all have ended."""
        wanted, cpus, memory_mib, seen = shape.gpus, shape.cpus, shape.memory_mib, self._seen
        if len(self._usable) < wanted:
            return None
        place = bisect_left(seen, (wanted,)) if seen else 0
        while place < len(seen) or self._look_further(wanted):
            moment = seen[place]
            if moment[0] >= wanted and moment[2] >= cpus and moment[3] >= memory_mib:
                return moment
            place += 1
        return None

    def _look_further(self, wanted: int) -> bool:
        """See at least one moment more, and on until so many GPUs are free; whether there was one.

        What should have ended by now ends now.
        """
        coming, now, gpus, seen, usable = self._coming, self._now, self.gpus, self._seen, self._usable
        cpus, memory_mib, alone, before = self._cpus, self._memory_mib, not self._kind.shared, len(seen)
        place, count = self._next, len(coming)
        while place < count:
            end, _, leaver = coming[place]
            if end > now:
                seen.append((len(gpus), now, cpus, memory_mib))
                now = end
                if len(gpus) >= wanted:
                    break
            cpus += leaver.cpus
            memory_mib += leaver.memory_mib
            if not alone or leaver.shared:
                self._leave_shared(leaver)
            elif usable.issuperset(leaver.gpu_ids):
                gpus.extend(leaver.gpu_ids)
            else:
                gpus.extend([index for index in leaver.gpu_ids if index in usable])
            place += 1
        else:
            if not self._is_all:
                seen.append((len(gpus), now, cpus, memory_mib))
                self._is_all = True
        self._next, self._now, self._cpus, self._memory_mib = place, now, cpus, memory_mib
        return len(seen) > before

    def _leave_shared(self, leaver: Leaver) -> None:
        """It leaves GPUs on which others are, or where such a job may be beside others."""
        state = self._state
        for index in self._usable.intersection(leaver.gpu_ids):
            holders = self._held.get(index)
            if holders is None:
                holders = self._held[index] = dict(state.machine.holders[index])
            holders.pop(leaver.key, None)
            if index not in self.gpus and _is_free(state, self._kind, index, holders):
                self.gpus.append(index)


def _is_free(state: State, kind: Shape, index: int, holders: dict[JobKey, int]) -> bool:
    """Whether such a job could have this GPU beside these holders."""
    if holders and (not kind.shared or 0 in holders.values()):
        return False
    used = sum(holders.values()) + state.machine.taken.get(index, 0)
    return used + kind.gpu_memory_mib <= state.machine.gpus[index].memory_mib * SLACK
