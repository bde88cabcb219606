"""Position of training in the data, and how to return to it with a loader that cannot seek."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gflow.ml.train.checkpoint import rng
from gflow.ml.train.data.data_sharding import Share


class Position:
    """Total steps; within the current epoch, samples used by all ranks and batches of this rank."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0
        self.samples = 0
        self.batches = 0
        # Random number states at the start of the epoch; only with a loader of the script's own.
        self.begun: dict[str, Any] | None = None

    def next_epoch(self) -> None:
        self.epoch += 1
        self.samples = self.batches = 0
        self.begun = None

    def common(self) -> dict[str, int]:
        return {"step": self.step, "epoch": self.epoch, "samples": self.samples}

    def mine(self) -> dict[str, Any]:
        return {"batches": self.batches, "begun": self.begun}

    def restore(self, common: dict[str, int], mine: dict[str, Any] | None) -> None:
        self.step, self.epoch, self.samples = common["step"], common["epoch"], common["samples"]
        self.batches, self.begun = (mine["batches"], mine["begun"]) if mine else (0, None)


def iterate_foreign_loader(
    loader: Any, position: Position, accumulate: int, device: torch.device
) -> Iterator[tuple[Any, Share]]:
    """Iterate over an epoch of any loader, from `position` on.

    The loader may draw its order from the global generator when the epoch begins. So the generators are
    restored to their state at the start of the epoch, batches are skipped up to the position, and then the
    generators are set back to their present state.
    """
    now = rng.states(device)
    if position.begun is None:
        position.begun = now
    else:
        rng.restore(position.begun, device)
    sampler: Any = getattr(loader, "sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(position.epoch)
    skip = position.batches
    count = len(loader) if hasattr(loader, "__len__") else None
    batches = iter(loader)
    for _ in range(skip):
        next(batches)
    if skip:
        rng.restore(now, device)
    for at, batch in enumerate(batches, start=skip):
        # The remaining batches of an epoch make a smaller last step.
        first = at - at % accumulate
        size = accumulate if count is None else min(accumulate, count - first)
        yield batch, Share(at, at + 1, 1 / size, at + 1, at - first == size - 1)
