"""Where a GPU's memory went: figures, the largest tensors, snapshots, profiles, leaks, and advice."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from gflow.errors import Refused

# Free inside of reserved memory, as a part of it, from which on it is called fragmented.
SCATTERED = 0.25
MIB = 1 << 20


class Memory(NamedTuple):
    """Bytes: in tensors, taken from the card for them, and the most of each so far."""

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
    """How the GPU stands."""
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


class Tensor(NamedTuple):
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    # How many tensors share its memory.
    shared: int


def largest_tensors(count: int = 10, device: str | None = None) -> list[Tensor]:
    """The largest tensors that Python knows of; those that only a graph holds are not among them."""
    found: dict[int, Tensor] = {}
    for thing in gc.get_objects():
        try:
            if not isinstance(thing, torch.Tensor) or (device and thing.device.type != device):
                continue
            storage = thing.untyped_storage()
            key, size = storage.data_ptr(), storage.nbytes()
        except (ReferenceError, RuntimeError, NotImplementedError):  # half dead, or made of nothing
            continue
        if key:
            shared = found[key].shared + 1 if key in found else 1
            found[key] = Tensor(size, tuple(thing.shape), str(thing.dtype), str(thing.device), shared)
    return sorted(found.values(), key=lambda one: -one.bytes)[:count]


@contextmanager
def leak_check(rounds: str = "this block", tolerance: int = MIB) -> Iterator[None]:
    """Refuses to go on if more memory is in use after the block than before it: call it around one step."""
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
    """What would help against fragmentation; empty if nothing would."""
    now = found or memory()
    scattered = now.reserved - now.allocated
    if now.reserved and scattered > SCATTERED * now.reserved and now.free < now.total // 10:
        return (
            f"{scattered / MIB:,.0f} MiB are taken from the card and not in use, in pieces: set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the run starts"
        )
    return ""


@contextmanager
def snapshot(path: str | os.PathLike[str], entries: int = 100_000) -> Iterator[None]:
    """Every allocation of the block, for https://pytorch.org/memory_viz."""
    _need_gpu()
    torch.cuda.memory._record_memory_history(max_entries=entries)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(os.fspath(path))
        torch.cuda.memory._record_memory_history(enabled=None)


def profile(
    step: Callable[[], Any], *, steps: int = 5, trace: str | os.PathLike[str] | None = None, rows: int = 15
) -> str:
    """A table of what takes the time in `step`, which is called a few times; `trace`: a file for chrome://tracing."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    step()  # the first one builds things that stay
    with profiler(activities=activities, profile_memory=True) as found:
        for _ in range(steps):
            step()
    if trace is not None:
        found.export_chrome_trace(os.fspath(trace))
    by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    table: str = found.key_averages().table(sort_by=by, row_limit=rows)
    return table


def _need_gpu() -> None:
    if not torch.cuda.is_available():
        raise Refused("there is no GPU whose memory could be looked at")
