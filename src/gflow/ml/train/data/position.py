"""Where in the data training is, and how to get there again with a loader that knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from gflow.ml.train.checkpoint import rng
from gflow.ml.train.data.data_sharding import Share


class Place:
    """Steps in all; in the current epoch the samples that all ranks used, and the batches of this one."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0
        self.samples = 0
        self.batches = 0
        # The random numbers' states when this epoch began, with a loader of the script's own.
        self.begun: dict[str, Any] | None = None

    def next_epoch(self) -> None:
        self.epoch += 1
        self.samples = self.batches = 0
        self.begun = None

    def common(self) -> dict[str, int]:
        return {"step": self.step, "epoch": self.epoch, "samples": self.samples}

    def mine(self) -> dict[str, Any]:
        return {"batches": self.batches, "begun": self.begun}

    def set_back(self, common: dict[str, int], mine: dict[str, Any] | None) -> None:
        self.step, self.epoch, self.samples = common["step"], common["epoch"], common["samples"]
        self.batches, self.begun = (mine["batches"], mine["begun"]) if mine else (0, None)


def foreign_epoch(
    loader: Any, place: Place, accumulate: int, device: torch.device
) -> Iterator[tuple[Any, Share]]:
    """An epoch of somebody else's loader, from where `place` is.

    Its order may come from the global generator when it is begun, so the epoch is begun as it was, gone
    through up to the place, and then all generators are set to what they are now.
    """
    now = rng.states(device)
    if place.begun is None:
        place.begun = now
    else:
        rng.set_back(place.begun, device)
    sampler: Any = getattr(loader, "sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(place.epoch)
    skip = place.batches
    count = len(loader) if hasattr(loader, "__len__") else None
    batches = iter(loader)
    for _ in range(skip):
        next(batches)
    if skip:
        rng.set_back(now, device)
    for at, batch in enumerate(batches, start=skip):
        # The last batches of an epoch that make no full step are a smaller one.
        first = at - at % accumulate
        size = accumulate if count is None else min(accumulate, count - first)
        yield batch, Share(at, at + 1, 1 / size, at + 1, at - first == size - 1)
