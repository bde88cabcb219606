"""A run under `gflow scale`, measured: samples in a time that begins after the warm-up, how long the ranks
waited for data, and how long the exchange of gradients takes by itself.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gflow.ml.train.metering import Meter, meter_of
from gflow.ml.train.parallel import bare
from gflow.ml.train.ranks import Ranks

# Gradients go in pieces of so many bytes, as DDP sends them.
PIECE = 25 << 20
TRIES = 5


class Stopwatch:
    """One rank's. All ranks have one, or none has."""

    def __init__(self, meter: Meter, device: torch.device, ranks: Ranks) -> None:
        self._meter, self._device, self._ranks = meter, device, ranks
        self._waited = 0.0
        self._steps = self._steps_before = self._counted = 0
        self._began: float | None = None
        self.batch = 0

    def through(self, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """The same batches; how long each was waited for is added up."""
        while True:
            asked = time.perf_counter()
            try:
                batch, share = next(batches)
            except StopIteration:
                return
            self._waited += time.perf_counter() - asked
            size = samples_in(batch)
            self.batch = max(self.batch, size)
            self._counted += size
            yield batch, share

    @property
    def counted(self) -> int:
        """Samples of all ranks, if each had as many as this one."""
        return self._counted * self._ranks.world

    def step(self, step: int, samples: int) -> bool:
        """A step is done. Whether that was enough."""
        self._steps += 1
        if self._steps == self._meter.warmup:
            self._mark(step, samples)
            self._began, self._waited, self._steps_before = time.monotonic(), 0.0, self._steps
        return self._began is not None and time.monotonic() - self._began >= self._meter.seconds

    def finish(self, step: int, samples: int, model: nn.Module | None) -> None:
        """The last look at the clock, and all the rest. On all ranks, at the same step."""
        if self._began is None:
            return
        self._mark(step, samples)
        steps = self._steps - self._steps_before
        waited = self._most(self._waited)
        exchange_s, exchanged = self._exchange(model)
        if self._ranks.is_first and steps:
            self._meter.facts(
                {
                    "world": self._ranks.world,
                    "batch": self.batch,
                    "data_s": waited / steps,
                    "exchange_s": exchange_s,
                    "exchange_bytes": exchanged,
                    "processes": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
                    "cores": len(os.sched_getaffinity(0)),
                    "load": os.getloadavg()[0],
                    "device": self._device.type,
                }
            )

    def _mark(self, step: int, samples: int) -> None:
        if self._device.type == "cuda":  # what is still being computed is not done
            torch.cuda.synchronize(self._device)
        if self._ranks.is_first:
            self._meter.tick(step, samples, always=True)

    def _most(self, value: float) -> float:
        """The largest of all ranks."""
        if self._ranks.world == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._ranks.control)
        return float(tensor.item())

    def _exchange(self, model: nn.Module | None) -> tuple[float | None, int]:
        """Seconds for one sum of all gradients over all ranks, with nothing else to do, and their bytes.

        None where there is none, or where it is done otherwise (shards).
        """
        if model is None or self._ranks.world == 1 or bare(model) is model:
            return None, 0
        size = sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
        piece = torch.zeros(min(size, PIECE) // 4 or 1, device=self._device)
        took = []
        for _ in range(TRIES + 1):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(-(-size // PIECE)):
                dist.all_reduce(piece)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            took.append(time.perf_counter() - began)
        return statistics.median(took[1:]), size


def stopwatch(device: torch.device, ranks: Ranks) -> Stopwatch | None:
    """For a run that is measured; None for all others."""
    meter = meter_of()
    return None if meter is None else Stopwatch(meter, device, ranks)


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the first length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return next((size for one in parts if (size := samples_in(one))), 0)
