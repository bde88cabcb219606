"""Iteration over a loader of the script's own, which need not know its length and cannot seek.

The batches of a step are taken from the loader before the first of them is used. So their number and their
samples are known, on all ranks: the gradient is the mean over the samples of the step, also at the end of an
epoch, and ranks whose loader ends earlier take part until the others end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from gflow.errors import UsageError
from gflow.ml.train.checkpoint import rng
from gflow.ml.train.data.batch_content import samples_in
from gflow.ml.train.data.data_sharding import Share
from gflow.ml.train.data.position import Position
from gflow.ml.train.ranks import Ranks

# Whether so many batches of this rank, with so many samples, make a step.
IsEnough = Callable[[int, int], bool]


def length_of(loader: Any) -> int | None:
    """Return the number of batches in an epoch; None if the loader does not know it."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # a DataLoader over an iterable dataset has a __len__ that fails
        return None


def is_undivided(loader: Any) -> bool:
    """Whether each rank gets all samples of the dataset, because no sampler divides them."""
    return (
        isinstance(loader, DataLoader)
        and type(loader.sampler) in (RandomSampler, SequentialSampler)
        and type(loader.batch_sampler) in (BatchSampler, type(None))
    )


def iterate_foreign_loader(
    loader: Any, position: Position, ranks: Ranks, device: torch.device, is_enough: IsEnough
) -> Iterator[tuple[Any, Share]]:
    """Iterate over an epoch of any loader, from `position` on."""
    batches = _replay(loader, position, device)
    used, last = position.batches, None
    while True:
        group = _take_step(batches, is_enough)
        everyone = ranks.gather_counts((len(group), sum(count for _, count in group)))
        rounds, total = max(count for count, _ in everyone), sum(samples for _, samples in everyone)
        if not rounds:
            return
        if not group and last is None:
            raise UsageError(f"the loader of rank {ranks.rank} has no batches, and that of another rank has")
        for at in range(rounds):
            is_repeated = at >= len(group)
            last, count = (last, 0) if is_repeated else group[at]
            used += not is_repeated
            weight = count * ranks.world / total
            yield last, Share(used - 1, used, weight, used, at == rounds - 1, is_repeated)


def _replay(loader: Any, position: Position, device: torch.device) -> Iterator[Any]:
    """Return the loader's iterator after the batches that were used before.

    The loader may draw its order from the global generator when the epoch begins. So the generators are
    restored to their state at the start of the epoch, batches are skipped up to the position, and then the
    generators are set back to their present state.
    """
    now = rng.states(device)
    if position.begun is None:
        position.begun = now
    else:
        rng.restore(position.begun, device)
    for name in ("sampler", "dataset"):
        part: Any = getattr(loader, name, None)
        if hasattr(part, "set_epoch"):
            part.set_epoch(position.epoch)
    batches: Iterator[Any] = iter(loader)
    for at in range(position.batches):
        if next(batches, batches) is batches:
            raise UsageError(
                f"the loader has {at} batches, and the checkpoint was written after {position.batches}",
                hint="resume with the data that the run began with, or give it another folder",
            )
    if position.batches:
        rng.restore(now, device)
    return batches


def _take_step(batches: Iterator[Any], is_enough: IsEnough) -> list[tuple[Any, int]]:
    """Take the batches of a step, each with its number of samples; fewer at the end of an epoch."""
    group: list[tuple[Any, int]] = []
    samples = 0
    while not group or not is_enough(len(group), samples):
        try:
            batch = next(batches)
        except StopIteration:
            break
        count = samples_in(batch) or 1
        group.append((batch, count))
        samples += count
    return group
