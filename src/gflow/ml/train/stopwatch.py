"""Measurement of a run under `gflow scale`: throughput after the warm-up, time spent waiting for data, and
the duration of a gradient all-reduce on its own.
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

from gflow.ml.train.data.batch_content import samples_in
from gflow.ml.train.metering import Meter, meter_of
from gflow.ml.train.parallel import unwrap
from gflow.ml.train.ranks import Ranks

# Bytes per all-reduce: the bucket size of DDP.
PIECE = 25 << 20
TRIES = 5


class Stopwatch:
    """The measurement of one rank. Either all ranks have one or none."""

    def __init__(self, meter: Meter, device: torch.device, ranks: Ranks) -> None:
        self._meter, self._device, self._ranks = meter, device, ranks
        self._data_wait_s = 0.0
        self._steps = self._steps_before = self._counted = 0
        self._began: float | None = None
        self.batch = 0

    def count_batches(self, batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield the batches unchanged; add up samples and the time spent waiting for data."""
        while True:
            asked = time.perf_counter()
            try:
                batch, share = next(batches)
            except StopIteration:
                return
            self._data_wait_s += time.perf_counter() - asked
            size = samples_in(batch)
            self.batch = max(self.batch, size)
            self._counted += size
            yield batch, share

    @property
    def counted(self) -> int:
        """Samples of all ranks, assuming that each had as many as this one."""
        return self._counted * self._ranks.world

    def step(self, step: int, samples: int) -> bool:
        """Record the end of a step. Return whether the measurement is complete."""
        self._steps += 1
        if self._steps == self._meter.warmup:
            self._mark(step, samples)
            self._began, self._data_wait_s, self._steps_before = time.monotonic(), 0.0, self._steps
        return self._began is not None and time.monotonic() - self._began >= self._meter.seconds

    def finish(self, step: int, samples: int, model: nn.Module | None) -> None:
        """Write the final results. Called on all ranks at the same step."""
        if self._began is None:
            return
        self._mark(step, samples)
        steps = self._steps - self._steps_before
        waited = self._max_over_ranks(self._data_wait_s)
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
        if self._device.type == "cuda":  # count only finished work
            torch.cuda.synchronize(self._device)
        if self._ranks.is_first:
            self._meter.tick(step, samples, always=True)

    def _max_over_ranks(self, value: float) -> float:
        """Return the largest value of all ranks."""
        if self._ranks.world == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._ranks.control)
        return float(tensor.item())

    def _exchange(self, model: nn.Module | None) -> tuple[float | None, int]:
        """Measure an all-reduce of all gradients without overlap. Return seconds and bytes.

        The time is None with a single rank and for a model that is not wrapped by DDP.
        """
        if model is None or self._ranks.world == 1 or unwrap(model) is model:
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
    """Create the stopwatch of a measured run; None for any other run."""
    meter = meter_of()
    return None if meter is None else Stopwatch(meter, device, ranks)
