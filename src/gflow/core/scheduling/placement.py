"""Placement: whether a job can start now, and on which GPUs. Changes nothing: the engine books the choice.

With the strategy `topology`, GPUs are chosen that are near each other: connected by NVLink, or at least on
one NUMA node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gflow.core.model import Gpu
from gflow.core.state.machine import SLACK, suits

if TYPE_CHECKING:
    from gflow.core.model import Job, Moment
    from gflow.core.resources import Shape
    from gflow.core.state.state import State


def placement(state: State, job: Job, at: Moment) -> tuple[int, ...] | None:
    """The GPUs (possibly none) with which this job may start now; None if it must wait.

    The one gate to a start: caps, quotas and reservations are checked here.
    """
    machine = state.machine
    if machine.is_drained or machine.stalled or len(state.running) >= machine.most_runs:
        return None
    if state.is_claimed(job):
        return None
    if state.is_capped(job) or state.accounting.over_quota(job, state.policy):
        return None
    seed = _seed(job) if state.policy.strategy == "random" else 0
    return choose(state, state.ready.shape_of(job), seed, state.reserved.barred(job, at.wall))


def _seed(job: Job) -> int:
    """Seed of the strategy `random`: different for every start, and reproducible for the same start."""
    done = job.progress
    return hash((job.key, job.attempt, done.active + done.ok + done.bad + done.cancelled if done else 0))


def choose(
    state: State, shape: Shape, seed: int = 0, barred: frozenset[int] = frozenset()
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
    return tuple(sorted(order_by_strategy(state, found, seed, wanted)[:wanted]))


def order_by_strategy(state: State, found: list[int], seed: int, count: int) -> list[int]:
    """These GPUs in the order of the strategy, first choice first."""
    if state.policy.strategy == "random":
        # The engine uses no random numbers. Python's hash of a tuple of integers is well mixed and stable.
        return sorted(found, key=lambda index: hash((seed, index)))
    if state.policy.strategy == "pack":
        return sorted(found, key=lambda index: (free_mib(state, index), index))
    if state.policy.strategy == "topology":
        return nearest_first(state.machine.gpus, found, count)
    return found


def free_mib(state: State, index: int) -> int:
    """Memory of the GPU, in MiB, that no shared job has declared."""
    return state.machine.gpus[index].memory_mib - sum(state.machine.holders.get(index, {}).values())


def available(state: State, shape: Shape) -> list[int]:
    """Indices of GPUs that a job of this shape could get now, lowest first."""
    if not shape.shared:
        machine = state.machine
        fitting = machine.fitting(shape)
        if len(fitting) == len(machine.usable):
            return machine.idle_sorted.copy()
        return [index for index in machine.idle_sorted if index in fitting]
    return [
        index
        for index in sorted(state.machine.open)
        if suits(state.machine.gpus[index], shape) and fits_beside(state, index, shape.gpu_memory_mib)
    ]


def fits_beside(state: State, index: int, memory_mib: int) -> bool:
    """Whether a shared job of this size fits on the GPU beside its present jobs."""
    others = sum(state.machine.holders.get(index, {}).values()) + state.machine.taken.get(index, 0)
    return others + memory_mib <= state.machine.gpus[index].memory_mib * SLACK


def why_impossible(state: State, shape: Shape) -> str | None:
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
    if mib < 1024:
        return f"{mib} MiB"
    return f"{mib / 1024:.4g} GiB" if mib < 9999 << 10 else f"{mib >> 10} GiB"


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count > 1)}"


# Weights of an NVLink connection and of a common NUMA node.
LINK, NODE = 100, 1
# Groups are grown from at most this many GPUs, which bounds the cost.
STARTS = 32


def nearest_first(gpus: Mapping[int, Gpu], found: Sequence[int], count: int) -> list[int]:
    """`found`, with `count` GPUs first that are as near to each other as possible.

    Greedy: a group is grown from each GPU by adding the one nearest to the group. A job that wants one GPU
    gets the one with the fewest free neighbours, so that neighbours stay together for other jobs.
    """
    if not any(gpus[index].links or gpus[index].node >= 0 for index in found):
        return list(found)
    if count < 2:
        return sorted(found, key=lambda index: (nearness(gpus, index, found), index))
    groups = [_grow(gpus, first, found, count) for first in found[:STARTS]]
    best = max(groups, key=lambda group: (_closeness(gpus, group), [-index for index in sorted(group)]))
    return sorted(best) + [index for index in found if index not in best]


def nearness(gpus: Mapping[int, Gpu], index: int, others: Sequence[int]) -> int:
    """How near a GPU is to these others, summed up."""
    gpu = gpus[index]
    linked = sum(other in gpu.links for other in others if other != index)
    beside = sum(gpus[other].node == gpu.node >= 0 for other in others if other != index)
    return LINK * linked + NODE * beside


def _grow(gpus: Mapping[int, Gpu], first: int, found: Sequence[int], count: int) -> list[int]:
    group, rest = [first], [index for index in found if index != first]
    while len(group) < count and rest:
        chosen = max(rest, key=lambda index: (nearness(gpus, index, group), -index))
        group.append(chosen)
        rest.remove(chosen)
    return group


def _closeness(gpus: Mapping[int, Gpu], group: Sequence[int]) -> int:
    return sum(nearness(gpus, index, group) for index in group)
