"""A data loader that can resume at any sample, with an order that depends only on seed and epoch.

`Run.batches` trains with it. Iterating over it directly is for evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from gflow.errors import UsageError
from gflow.ml.train.data.batch_content import move_to_device
from gflow.ml.train.data.data_sharding import Share, shares


class Loader:
    """Batches of one rank, reshuffled in each epoch. Created by `Run.loader`.

    `for batch in loader` evaluates: all samples in the order of the dataset, each on one rank, on the device.
    All ranks get the same number of batches, so some may get a sample again, which `Run.gather` leaves out.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        effective: int,
        *,
        seed: int,
        world: int,
        rank: int,
        shuffle: bool,
        drop_last: bool,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        if batch_size < 1 or effective < 1:
            raise UsageError(f"a batch of {min(batch_size, effective)} samples: it must have at least 1")
        if not hasattr(dataset, "__len__"):
            raise UsageError(
                "run.loader takes a dataset with a length", hint="hand a loader of your own to run.batches"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.effective = effective
        self._seed = seed
        self._world, self._rank = world, rank
        self._shuffle = shuffle
        self._drop = drop_last
        self._device, self._dtype = device or torch.device("cpu"), dtype
        self._options = options
        # While the loader is iterated for evaluation: samples of the current batch that count; else None.
        self.counted: int | None = None

    def __len__(self) -> int:
        """Batches of this rank, and of every other, in an iteration for evaluation."""
        return -(-len(self.dataset) // (self.batch_size * self._world))

    def __iter__(self) -> Iterator[Any]:
        count, each = len(self.dataset), self.batch_size * self._world
        plan = list(shares(count, self.batch_size, each, self._world, self._rank))
        try:
            for batch, share in zip(self._load(range(count), plan, None), plan, strict=True):
                self.counted = share.last - share.first if share.weight else 0
                yield move_to_device(batch, self._device, self._dtype)
        finally:
            self.counted = None

    def plan(self, start: int = 0) -> Iterator[Share]:
        count = len(self.dataset)
        return shares(count, self.batch_size, self.effective, self._world, self._rank, start, self._drop)

    def made_of(self) -> str:
        """Describe how a step is divided into processes and batches."""
        rounds = -(-self.effective // (self.batch_size * self._world))
        each = min(self.batch_size, -(-self.effective // self._world))
        equal = "=" if each * self._world * rounds == self.effective else "of at most"
        times = f" x {rounds} batches" if rounds > 1 else ""
        ranks = f"{self._world} process{'es' if self._world > 1 else ''}"
        return f"effective batch {self.effective} {equal} {ranks} x {each} samples{times}"

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        count = len(self.dataset)
        return count // self.effective if self._drop else -(-count // self.effective)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Any, Share]]:
        """Iterate over the batches of an epoch from sample `start` on."""
        # A separate generator: with the global one, a resumed run would differ from an uninterrupted one.
        generator = torch.Generator().manual_seed(_mix(self._seed, number))
        count = len(self.dataset)
        order = torch.randperm(count, generator=generator).tolist() if self._shuffle else range(count)
        plan = list(self.plan(start))
        return zip(self._load(order, plan, generator), plan, strict=True)

    def _load(
        self, order: Sequence[int], plan: list[Share], generator: torch.Generator | None
    ) -> DataLoader[Any]:
        return DataLoader(
            self.dataset,
            batch_sampler=[list(order[share.first : share.last]) for share in plan],
            # Without one of its own, PyTorch's loader draws from the global generator.
            generator=generator or torch.Generator(),
            **self._options,
        )


def _mix(seed: int, epoch: int) -> int:
    """Hash seed and epoch into one seed, so that neighbouring pairs do not collide."""
    return (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + 1) % (1 << 63)
