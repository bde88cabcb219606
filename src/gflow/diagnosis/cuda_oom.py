"""The figures in PyTorch's message about exhausted GPU memory, and what they say to do."""

from __future__ import annotations

import re
from typing import NamedTuple

from gflow.diagnosis.circumstances import Circumstances, spell_mib
from gflow.diagnosis.finding import Evidence

_SIZE = r"([\d.]+) (bytes|[KMGT]i?B)"
_FIGURES = {
    "tried": rf"Tried to allocate {_SIZE}",
    "total": rf"total capacity of {_SIZE}|; {_SIZE} total capacity",
    "free": rf"of which {_SIZE} is free|; {_SIZE} free",
    "process": rf"this process has {_SIZE} memory in use",
    "allowed": rf"{_SIZE} allowed",
    "allocated": rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated|; {_SIZE} cached",
    "reserved": rf"; {_SIZE} reserved in total",
}
_OTHERS = rf"Process (\d+) has {_SIZE} memory in use"
# Line of `gflow.train` about an exhausted GPU: the batch, and the memory that does not grow with it.
_TRAINED = rf"gflow\.train: out of GPU memory with a batch of (\d+); {_SIZE} do not depend on it"
# Other processes matter if they have this share of the GPU.
OTHERS_SHARE = 0.05
# Memory is called fragmented if this share of what PyTorch reserved is unused.
MANY_PIECES = 0.1
# A process that may use less than this share of the GPU has a limit.
LIMITED = 0.95
# No batch fits if the memory that does not depend on it takes this share.
NO_ROOM = 0.95
MIB = {"bytes": 2.0**-20, "KB": 2.0**-10, "MB": 1.0, "GB": 1024.0, "TB": 2.0**20}


class CudaOom(NamedTuple):
    """The figures of one message, in MiB; None: it does not have them."""

    tried: float | None = None
    total: float | None = None
    free: float | None = None
    process: float | None = None
    allowed: float | None = None
    allocated: float | None = None
    unused: float | None = None
    reserved: float | None = None
    others: tuple[tuple[int, float], ...] = ()

    @property
    def is_fragmented(self) -> bool:
        """Whether PyTorch has as much memory as was needed, in pieces that are too small."""
        return self.unused is not None and self.tried is not None and self.unused >= self.tried

    @property
    def is_limited(self) -> bool:
        """Whether a limit of the process was reached, not the end of the GPU."""
        return bool(self.allowed and self.total and self.allowed < LIMITED * self.total)

    @property
    def others_mib(self) -> float:
        return sum(size for _, size in self.others)

    @property
    def figures(self) -> dict[str, float]:
        """The known figures by name, for JSON."""
        known = {f"{name}_mib": value for name, value in self._asdict().items() if isinstance(value, float)}
        return known | ({"others_mib": self.others_mib} if self.others else {})


def parse_cuda_oom(line: str) -> CudaOom:
    """Read the figures of a line. Knows the messages of PyTorch 1 and 2."""
    found = {name: _first_mib(re.search(pattern, line)) for name, pattern in _FIGURES.items()}
    if found["unused"] is None and found["reserved"] is not None and found["allocated"] is not None:
        found["unused"] = found["reserved"] - found["allocated"]
    elif found["reserved"] is None and found["unused"] is not None and found["allocated"] is not None:
        found["reserved"] = found["allocated"] + found["unused"]
    others = tuple((int(pid), _mib(size, unit)) for pid, size, unit in re.findall(_OTHERS, line))
    return CudaOom(**found, others=others)


def _first_mib(found: re.Match[str] | None) -> float | None:
    if found is None:
        return None
    size, unit = (part for part in found.groups() if part is not None)
    return _mib(size, unit)


def _mib(size: str, unit: str) -> float:
    return round(float(size) * MIB[unit.replace("i", "")], 3)


def summarize(oom: CudaOom) -> str:
    """What happened, if a limit or fragments explain it better than a full GPU; else empty."""
    if oom.is_fragmented and (oom.unused or 0) >= MANY_PIECES * (oom.reserved or 0):
        return (
            f"PyTorch had no piece of {spell_mib(oom.tried or 0)}: {spell_mib(oom.unused or 0)} of its "
            "memory is unused, in smaller pieces (fragmentation)."
        )
    if oom.is_limited:
        return f"The process needed {spell_mib(oom.tried or 0)} more than it may use of the GPU."
    return ""


def advise(oom: CudaOom, around: Circumstances, text: str) -> list[str]:
    """What the figures say to do, the most useful first. `text`: the log, for the line of `gflow.train`."""
    return [
        *_about_others(oom),
        *_about_size(oom),
        *_about_pieces(oom, around),
        *_about_batch(oom, around, text),
    ]


def _about_others(oom: CudaOom) -> list[str]:
    if not oom.total or oom.others_mib < OTHERS_SHARE * oom.total:
        return []
    pids = ", ".join(str(pid) for pid, _ in oom.others)
    return [
        f"other processes ({pids}) hold {spell_mib(oom.others_mib)} of the GPU: ginfo shows whose they are"
    ]


def _about_size(oom: CudaOom) -> list[str]:
    if oom.is_limited:
        share = (
            f"the process may use {spell_mib(oom.allowed or 0)} of the GPU: ask for more with --gpu-memory"
        )
        return [share] if not oom.is_fragmented else []
    if oom.tried and oom.total and oom.tried > oom.total:
        return [
            f"one tensor of {spell_mib(oom.tried)} is larger than the GPU: check its shape, not the batch"
        ]
    return []


def _about_pieces(oom: CudaOom, around: Circumstances) -> list[str]:
    if not oom.is_fragmented:
        return []
    what = f"{spell_mib(oom.unused or 0)} of PyTorch's memory is reserved and not in use (fragmentation)"
    if "expandable_segments:true" in around.allocator.replace(" ", "").lower():
        return [f"{what}, although expandable_segments is set: vary the shapes of the batches less"]
    return [f"{what}: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]


def _about_batch(oom: CudaOom, around: Circumstances, text: str) -> list[str]:
    """Which batch fits, by the plan of the run; the message does not say how far the step had come."""
    trained = re.search(_TRAINED, text)
    batch = int(trained[1]) if trained else around.batch
    fixed = _mib(trained[2], trained[3]) if trained else 0.0
    room = _room(oom)
    if room and fixed >= NO_ROOM * room:
        return [
            f"weights, gradients and optimizer take {spell_mib(fixed)}, so no batch fits: gflow plan helps"
        ]
    if oom.is_fragmented or not batch:
        return []
    if around.plan is not None and around.plan.micro_batch < batch:
        planned = around.plan.micro_batch
        return [f"use the batch of the plan, {planned} on each GPU, which it predicts to fit: it was {batch}"]
    if not trained:
        return [
            f"halve the batch of {batch} and accumulate over two; gflow fit predicts the largest that fits"
        ]
    return [
        f"all but {spell_mib(fixed)} depends on the batch of {batch}: halve it with accumulate=2, or let "
        "gflow.train.find_batch_size find the largest that fits"
    ]


def about_prediction(around: Circumstances) -> list[Evidence]:
    """The prediction of gflow fit or gflow plan beside the size of the GPU, as evidence."""
    if not around.predicted_mib:
        return []
    size = max((use.total_mib for use in around.gpus), default=0)
    beside = f" of {spell_mib(size)}" if size else ""
    return [Evidence(None, f"gflow fit predicted {spell_mib(around.predicted_mib)}{beside}", source="gpu")]


def _room(oom: CudaOom) -> float:
    """Memory that PyTorch could have had for tensors, in MiB."""
    held = oom.reserved or oom.allocated or 0.0
    return min(held + (oom.free or 0.0), oom.allowed or float("inf")) if held else 0.0
