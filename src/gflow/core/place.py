"""Whether and where a job can run. Choices, never changes: the engine books what is chosen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gflow.core.machine import SLACK, suits
from gflow.core.topology import nearest_first

if TYPE_CHECKING:
    from gflow.core.model import Job
    from gflow.core.needs import Shape
    from gflow.core.state import State


def placement(state: State, job: Job) -> tuple[int, ...] | None:
    """The GPUs (possibly none) with which this job may start now; None if it must wait.

    The one gate to a start: caps, quotas and reservations are checked here.
    """
    machine = state.machine
    if machine.is_drained or machine.stalled or len(state.running) >= machine.most_runs:
        return None
    if state.claimed and job.key in state.claimed:
        return None
    if state.is_capped(job) or state.over_quota(job):
        return None
    lot = _lot(job) if state.policy.strategy == "random" else 0
    return choose(state, state.ready.shape_of(job), lot, state.barred(job))


def _lot(job: Job) -> int:
    """What `random` goes by: other for every start, and the same whenever the same start is decided."""
    done = job.progress
    return hash((job.key, job.attempt, done.active + done.ok + done.bad + done.cancelled if done else 0))


def choose(
    state: State, shape: Shape, lot: int = 0, barred: frozenset[int] = frozenset()
) -> tuple[int, ...] | None:
    """GPUs for a job of this shape, as the strategy picks them, or None if it does not fit now."""
    machine, wanted = state.machine, shape.gpus
    if shape.cpus > machine.free_cpus or shape.memory_mib > machine.free_memory_mib:
        return None
    if not wanted:
        return ()
    found = available(state, shape)
    if barred:
        found = [index for index in found if index not in barred]
    if len(found) < wanted:
        return None
    if state.policy.strategy == "sequential":
        return tuple(found[:wanted])
    return tuple(sorted(in_order(state, found, lot, wanted)[:wanted]))


def in_order(state: State, found: list[int], lot: int, count: int) -> list[int]:
    """These GPUs, the one to take first in front."""
    if state.policy.strategy == "random":
        # The engine has no dice; Python's hash of whole numbers is well mixed and always the same.
        return sorted(found, key=lambda index: hash((lot, index)))
    if state.policy.strategy == "pack":
        return sorted(found, key=lambda index: (free_mib(state, index), index))
    if state.policy.strategy == "topology":
        return nearest_first(state.machine.gpus, found, count)
    return found


def free_mib(state: State, index: int) -> int:
    """Memory of the GPU that no shared job has declared."""
    return state.machine.gpus[index].memory_mib - sum(state.machine.holders.get(index, {}).values())


def available(state: State, shape: Shape) -> list[int]:
    """Indices of GPUs that a job of this shape could get now, lowest first."""
    if not shape.shared:
        machine = state.machine
        fitting = machine.fitting(shape)
        if len(fitting) == len(machine.usable):
            return machine.idle_line.copy()
        return [index for index in machine.idle_line if index in fitting]
    return [
        index
        for index in sorted(state.machine.open)
        if suits(state.machine.gpus[index], shape) and fits_beside(state, index, shape.gpu_memory_mib)
    ]


def fits_beside(state: State, index: int, memory_mib: int) -> bool:
    """Whether a shared job of this size fits beside those that are on the GPU."""
    others = sum(state.machine.holders.get(index, {}).values()) + state.machine.taken.get(index, 0)
    return others + memory_mib <= state.machine.gpus[index].memory_mib * SLACK


def impossible(state: State, shape: Shape) -> str | None:
    """Why this machine could never run such a job, however long it waits; None if it could."""
    if shape.cpus > state.machine.cpus:
        return f"the job asks for {shape.cpus} CPUs, and this machine has {state.machine.cpus}"
    if shape.memory_mib > state.machine.memory_mib:
        have = gib(state.machine.memory_mib)
        return f"the job asks for {gib(shape.memory_mib)} of memory, and this machine has {have}"
    if not shape.gpus or state.machine.gpu_trouble:
        return None
    if not state.machine.gpus:
        return f"the job asks for {_gpus(shape.gpus)}, and this machine has none that gflow can see"
    if shape.gpus > len(state.machine.gpus):
        return f"the job asks for {_gpus(shape.gpus)}, and this machine has {len(state.machine.gpus)}"
    fitting = state.machine.of_kind(shape)
    if shape.gpus > fitting:
        kind = f" of type {shape.gpu_type!r}" if shape.gpu_type else ""
        size = f" with {gib(shape.gpu_memory_mib)}" if shape.gpu_memory_mib else ""
        return f"the job asks for {_gpus(shape.gpus)}{kind}{size}, and this machine has {fitting or 'none'}"
    return None


def gib(mib: int) -> str:
    """`1.5 GiB`, or `100 MiB` below one."""
    return f"{mib / 1024:.4g} GiB" if mib >= 1024 else f"{mib} MiB"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"
