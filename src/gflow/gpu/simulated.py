"""Simulated GPUs: `4x80G`, or `2x80G,2x24G`. Allocated like real GPUs, and always shown as simulated."""

from __future__ import annotations

from gflow.core.model import Gpu
from gflow.errors import UsageError
from gflow.options.lists import GPU_MOST

MOST = GPU_MOST


def simulated_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs that `--simulate-gpus TEXT` asks for."""
    gpus: list[Gpu] = []
    for part in text.split(","):
        count, cross, size = part.strip().lower().partition("x")
        gigabytes = size.removesuffix("g")
        if not cross or not _is_number(count) or not _is_number(gigabytes) or not int(gigabytes):
            raise UsageError(
                f"--simulate-gpus does not understand {text!r}",
                hint="write 4x80G, or 2x80G,2x24G for two kinds",
            )
        for _ in range(min(int(count), MOST + 1)):
            gpus.append(_gpu(len(gpus), int(gigabytes)))
    if not 1 <= len(gpus) <= MOST:
        raise UsageError(f"--simulate-gpus takes 1 to {MOST} GPUs, not {text!r}")
    return tuple(gpus)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _gpu(index: int, gigabytes: int) -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-simulated-{index}",
        model=f"Simulated {gigabytes} GB",
        memory_mib=gigabytes * 1024,
        simulated=True,
    )
