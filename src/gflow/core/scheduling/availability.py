"""What becomes free when, if running jobs end as expected."""

from __future__ import annotations

from bisect import bisect_left

from gflow.core.ids import JobKey
from gflow.core.resources import Shape
from gflow.core.state.end_times import Leaver
from gflow.core.state.machine import SLACK, suits
from gflow.core.state.start_reservations import Availability
from gflow.core.state.state import State


class AvailabilityProfile:
    """For jobs that ask for one kind of GPU in one way. It is seen as far ahead as somebody asks."""

    def __init__(self, state: State, kind: Shape, now: float, barred: frozenset[int]) -> None:
        self._state, self._kind, self._is_alone = state, kind, not kind.shared
        machine = state.machine
        if kind.shared:
            usable = machine.usable - barred
            self._usable = frozenset(index for index in usable if suits(machine.gpus[index], kind))
            held = machine.holders
            free = [index for index in self._usable if _is_free(state, kind, index, held.get(index, {}))]
        else:
            fitting = machine.fitting(kind)
            self._usable = fitting - barred if barred else fitting
            free = [index for index in machine.idle_line if index in self._usable]
        # Whether whatever becomes free will do.
        self._is_any = len(self._usable) == len(machine.usable) and not machine.has_strays
        # GPUs in the order in which they become free.
        self.gpus = free
        # Moments at which something ends, as far as somebody has asked: when that is, how many of the GPUs
        # are free then, CPU slots, host memory. (Four lists: tuples would be made and taken apart.)
        self.times: list[float] = []
        self.counts: list[int] = []
        self.cpus: list[int] = []
        self.memory_mib: list[int] = []
        # Those who leave, the next of them, what is free when all before it have left; whether that is all.
        self._coming, self._next, self._now, self._is_all = state.ends(), 0, now, False
        self._cpus, self._memory_mib = machine.free_cpus, machine.free_memory_mib
        # Who has GPUs that are shared, less those who have left.
        self._held: dict[int, dict[JobKey, int]] = {}

    def first_fit(self, wanted: int, cpus: int, memory_mib: int) -> int:
        """At which moment a job fits first that wants so much; -1: not even when all have ended."""
        counts = self.counts
        if len(self._usable) < wanted:
            return -1
        place = bisect_left(counts, wanted)
        while place < len(counts) or self._look_further(wanted):
            if counts[place] >= wanted and self.cpus[place] >= cpus and self.memory_mib[place] >= memory_mib:
                return place
            place += 1
        return -1

    def availability(self, place: int) -> Availability:
        return Availability(self.gpus, self.counts[place], self.cpus[place], self.memory_mib[place])

    def _look_further(self, wanted: int) -> bool:
        """See at least one moment more, and on until so many GPUs are free; whether there was one.

        What should have ended by now ends now.
        """
        coming, now, gpus, usable = self._coming, self._now, self.gpus, self._usable
        times, counts, before = self.times, self.counts, len(self.times)
        cpus, memory_mib, alone = self._cpus, self._memory_mib, self._is_alone
        place, count, is_any = self._next, len(coming), self._is_any
        while place < count:
            end, _, leaver = coming[place]
            if end > now:
                free = len(gpus)
                times.append(now)
                counts.append(free)
                self.cpus.append(cpus)
                self.memory_mib.append(memory_mib)
                now = end
                if free >= wanted:
                    break
            cpus += leaver.cpus
            memory_mib += leaver.memory_mib
            if not alone or leaver.shared:
                self._leave_shared(leaver)
            elif is_any:
                gpus.extend(leaver.gpu_ids)
            else:
                gpus.extend([index for index in leaver.gpu_ids if index in usable])
            place += 1
        else:
            if not self._is_all:
                times.append(now)
                counts.append(len(gpus))
                self.cpus.append(cpus)
                self.memory_mib.append(memory_mib)
                self._is_all = True
        self._next, self._now, self._cpus, self._memory_mib = place, now, cpus, memory_mib
        return len(times) > before

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
