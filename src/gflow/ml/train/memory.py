"""GPU memory diagnostics: counters, the largest tensors, snapshots, profiles, leak checks and advice."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from gflow.errors import Refused, unknown

# Memory is called fragmented if more than this fraction of the reserved memory is free.
SCATTERED = 0.25
MIB = 1 << 20


class Memory(NamedTuple):
    """Bytes allocated to tensors, reserved by the allocator, the peaks of both, free and total of the GPU."""

    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    free: int
    total: int

    def __str__(self) -> str:
        parts = (f"{name.replace('_', ' ')} {value / MIB:,.0f} MiB" for name, value in self._asdict().items())
        return ", ".join(parts)


def memory(device: Any = None) -> Memory:
    """Return the current memory counters of the GPU."""
    _need_gpu()
    free, total = torch.cuda.mem_get_info(device)
    return Memory(
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
        torch.cuda.max_memory_allocated(device),
        torch.cuda.max_memory_reserved(device),
        free,
        total,
    )


def reset_peaks(device: Any = None) -> None:
    """Reset the peaks of `memory`, for example to measure one step."""
    _need_gpu()
    torch.cuda.reset_peak_memory_stats(device)


def release(device: Any = None) -> int:
    """Collect garbage and give the memory that no tensor uses back to the GPU. Return the number of bytes.

    For other processes on the GPU, or between parts of a program that need blocks of other sizes. In a
    training step it only costs time.
    """
    _need_gpu()
    before = torch.cuda.memory_reserved(device)
    gc.collect()
    torch.cuda.empty_cache()
    return int(before - torch.cuda.memory_reserved(device))


class Tensor(NamedTuple):
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    # Number of tensors that share its storage.
    shared: int


def largest_tensors(count: int = 10, device: str | None = None) -> list[Tensor]:
    """Return the largest tensors that Python references. Those held only by an autograd graph are missing."""
    found: dict[int, Tensor] = {}
    for thing in gc.get_objects():
        try:
            if not isinstance(thing, torch.Tensor) or (device and thing.device.type != device):
                continue
            storage = thing.untyped_storage()
            key, size = storage.data_ptr(), storage.nbytes()
        except (ReferenceError, RuntimeError, NotImplementedError):  # being collected, or without storage
            continue
        if key:
            shared = found[key].shared + 1 if key in found else 1
            found[key] = Tensor(size, tuple(thing.shape), str(thing.dtype), str(thing.device), shared)
    return sorted(found.values(), key=lambda one: -one.bytes)[:count]


@contextmanager
def leak_check(rounds: str = "this block", tolerance: int = MIB) -> Iterator[None]:
    """Fail if the block leaves more memory allocated than before. Use it around one training step."""
    _need_gpu()
    gc.collect()
    before = torch.cuda.memory_allocated()
    yield
    gc.collect()
    grown = torch.cuda.memory_allocated() - before
    if grown > tolerance:
        largest = "; ".join(f"{one.shape} {one.dtype}" for one in largest_tensors(3, "cuda"))
        raise Refused(
            f"{rounds} left {grown / MIB:,.1f} MiB behind",
            hint=f"a list of losses with their graphs? keep loss.item() or loss.detach(). Largest: {largest}",
        )


def advice(found: Memory | None = None) -> str:
    """Return advice against fragmentation; empty if memory is not fragmented."""
    now = found or memory()
    scattered = now.reserved - now.allocated
    if now.reserved and scattered > SCATTERED * now.reserved and now.free < now.total // 10:
        return (
            f"{scattered / MIB:,.0f} MiB are taken from the card and not in use, in pieces: set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the run starts, or "
            "Run(expandable_segments=True)"
        )
    return ""


@contextmanager
def snapshot(path: str | os.PathLike[str], entries: int = 100_000) -> Iterator[None]:
    """Record every allocation of the block in a file for https://pytorch.org/memory_viz."""
    _need_gpu()
    torch.cuda.memory._record_memory_history(max_entries=entries)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(os.fspath(path))
        torch.cuda.memory._record_memory_history(enabled=None)


def profile(
    step: Callable[[], Any],
    *,
    steps: int = 5,
    trace: str | os.PathLike[str] | None = None,
    rows: int = 15,
    by: str = "time",
) -> str:
    """Profile a few calls of `step` and return a table by `time`, or by the `memory` that operators take.

    `trace`: a file for chrome://tracing.
    """
    if by not in ("time", "memory"):
        raise unknown("order", by, ("time", "memory"))
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    step()  # warm-up: the first call initialises and compiles
    with profiler(activities=activities, profile_memory=True) as found:
        for _ in range(steps):
            step()
    if trace is not None:
        found.export_chrome_trace(os.fspath(trace))
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    column = f"self_{kind}_time_total" if by == "time" else f"self_{kind}_memory_usage"
    table: str = found.key_averages().table(sort_by=column, row_limit=rows)
    return table


def _need_gpu() -> None:
    if not torch.cuda.is_available():
        raise Refused("there is no GPU to inspect")
