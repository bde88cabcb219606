"""The availability profile: the free resources at each time, if running jobs end as expected."""

from __future__ import annotations

from bisect import bisect_left

from gflow.core.ids import JobKey
from gflow.core.resources import Shape
from gflow.core.state.end_times import EndingJob
from gflow.core.state.machine import SLACK, suits
from gflow.core.state.start_reservations import Availability
from gflow.core.state.state import State


class AvailabilityProfile:
    """The profile for one kind of GPU, used alone or shared. Extended lazily, as far as queries need."""

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
            free = [index for index in machine.idle_sorted if index in self._usable]
        # Whether every GPU that becomes free is usable: then it need not be checked.
        self._is_any = len(self._usable) == len(machine.usable) and not machine.has_strays
        # GPUs in the order in which they become free.
        self.gpus = free
        # The steps of the profile so far: time, number of free GPUs (the first of `gpus`), CPU slots, host
        # memory. Four lists, because building and unpacking tuples would cost more.
        self.times: list[float] = []
        self.counts: list[int] = []
        self.cpus: list[int] = []
        self.memory_mib: list[int] = []
        # Running jobs by expected end, the index of the next one, the time of the current step, whether the
        # last step has been added; and the CPU slots and memory that are free when all earlier jobs ended.
        self._end_times, self._next, self._now, self._is_complete = state.running.ends(), 0, now, False
        self._cpus, self._memory_mib = machine.free_cpus, machine.free_memory_mib
        # Holders of shared GPUs without the jobs that have ended: GPU -> job -> declared memory.
        self._held: dict[int, dict[JobKey, int]] = {}

    def first_fit(self, wanted: int, cpus: int, memory_mib: int) -> int:
        """The index of the first step at which such a job fits; -1: not even when all running jobs ended."""
        counts = self.counts
        if len(self._usable) < wanted:
            return -1
        step = bisect_left(counts, wanted)
        while step < len(counts) or self._extend(wanted):
            if counts[step] >= wanted and self.cpus[step] >= cpus and self.memory_mib[step] >= memory_mib:
                return step
            step += 1
        return -1

    def availability(self, step: int) -> Availability:
        return Availability(self.gpus, self.counts[step], self.cpus[step], self.memory_mib[step])

    def _extend(self, wanted: int) -> bool:
        """Add at least one step, and more until `wanted` GPUs are free; whether there was one to add.

        A job that exceeds its expected end is assumed to end now.
        """
        end_times, now, gpus, usable = self._end_times, self._now, self.gpus, self._usable
        times, counts, before = self.times, self.counts, len(self.times)
        cpus, memory_mib, alone = self._cpus, self._memory_mib, self._is_alone
        step, count, is_any = self._next, len(end_times), self._is_any
        while step < count:
            end, _, ending = end_times[step]
            if end > now:
                free = len(gpus)
                times.append(now)
                counts.append(free)
                self.cpus.append(cpus)
                self.memory_mib.append(memory_mib)
                now = end
                if free >= wanted:
                    break
            cpus += ending.cpus
            memory_mib += ending.memory_mib
            if not alone or ending.shared:
                self._release_shared(ending)
            elif is_any:
                gpus.extend(ending.gpu_ids)
            else:
                gpus.extend([index for index in ending.gpu_ids if index in usable])
            step += 1
        else:
            if not self._is_complete:
                times.append(now)
                counts.append(len(gpus))
                self.cpus.append(cpus)
                self.memory_mib.append(memory_mib)
                self._is_complete = True
        self._next, self._now, self._cpus, self._memory_mib = step, now, cpus, memory_mib
        return len(times) > before

    def _release_shared(self, ending: EndingJob) -> None:
        """Release the GPUs of a job where GPUs are shared, by this job or by the kind of this profile."""
        state = self._state
        for index in self._usable.intersection(ending.gpu_ids):
            holders = self._held.get(index)
            if holders is None:
                holders = self._held[index] = dict(state.machine.holders[index])
            holders.pop(ending.key, None)
            if index not in self.gpus and _is_free(state, self._kind, index, holders):
                self.gpus.append(index)


def _is_free(state: State, kind: Shape, index: int, holders: dict[JobKey, int]) -> bool:
    """Whether a job of this kind could use this GPU beside these holders."""
    if holders and (not kind.shared or 0 in holders.values()):
        return False
    used = sum(holders.values()) + state.machine.taken.get(index, 0)
    return used + kind.gpu_memory_mib <= state.machine.gpus[index].memory_mib * SLACK
