"""Which GPUs lie near each other: within reach of NVLink, or at least on one NUMA node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gflow.core.model import Gpu

LINK, NODE = 100, 1
# With more GPUs than this, groups are tried from the first ones only: a look must stay quick.
STARTS = 32


def nearest_first(gpus: Mapping[int, Gpu], found: Sequence[int], count: int) -> list[int]:
    """`found` with `count` GPUs in front that lie as near to each other as can be had.

    Grown from each GPU by whichever is nearest to those already chosen. A job that wants one GPU
    gets the one with the fewest free neighbours, so that neighbours stay together for others.
    """
    if not any(gpus[index].links or gpus[index].node >= 0 for index in found):
        return list(found)
    if count < 2:
        return sorted(found, key=lambda index: (nearness(gpus, index, found), index))
    groups = [_grown(gpus, first, found, count) for first in found[:STARTS]]
    best = max(groups, key=lambda group: (_closeness(gpus, group), [-index for index in sorted(group)]))
    return sorted(best) + [index for index in found if index not in best]


def nearness(gpus: Mapping[int, Gpu], index: int, others: Sequence[int]) -> int:
    """How near a GPU is to these others, all together."""
    gpu = gpus[index]
    linked = sum(other in gpu.links for other in others if other != index)
    beside = sum(gpus[other].node == gpu.node >= 0 for other in others if other != index)
    return LINK * linked + NODE * beside


def _grown(gpus: Mapping[int, Gpu], first: int, found: Sequence[int], count: int) -> list[int]:
    group, rest = [first], [index for index in found if index != first]
    while len(group) < count and rest:
        chosen = max(rest, key=lambda index: (nearness(gpus, index, group), -index))
        group.append(chosen)
        rest.remove(chosen)
    return group


def _closeness(gpus: Mapping[int, Gpu], group: Sequence[int]) -> int:
    return sum(nearness(gpus, index, group) for index in group)
