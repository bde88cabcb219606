"""The answer of `gflow fit`, for people."""

from __future__ import annotations

from typing import Any

from gflow.text.table import table

GIB = 1 << 30
MEANING = {
    "high": "every operator is followed; usually within 1 %",
    "medium": "some of it is a library's own choice; usually within 5 %",
    "rough": "a formula; it may be off by half",
}


def page(found: Any) -> str:
    lines = [
        f"peak allocated  {size(found.peak_allocated_bytes):>10}   torch.cuda.max_memory_allocated()",
        f"peak reserved   {size(found.peak_reserved_bytes):>10}   with what the allocator keeps",
        f"whole process   {size(found.process_bytes):>10}   as nvidia-smi shows it",
        "",
    ]
    whole = found.peak_allocated_bytes or 1
    rows = [
        [kind, size(amount), f"{100 * amount / whole:.1f} %"]
        for kind, amount in found.breakdown.items()
        if amount
    ]
    lines.append(table(["AT THE PEAK", "MEMORY", "SHARE"], rows))
    lines.append(f"peak: {found.peak_phase} of step {found.peak_step}")
    lines.append(f"parameters: {count(found.total_params)}, of which {count(found.trainable_params)} learn")
    lines.append(f"confidence: {found.confidence} ({MEANING[found.confidence]})")
    lines += [f"  {doubt}" for doubt in found.doubts]
    if found.largest:
        rows = [[size(held.bytes), held.kind, held.module or "-", held.operator] for held in found.largest]
        lines += ["", table(["LARGEST", "FOR", "MODULE", "MADE BY"], rows).rstrip("\n")]
    return "\n".join(lines) + "\n"


def size(amount: int) -> str:
    return f"{amount / GIB:.2f} GiB" if amount >= GIB else f"{amount / (1 << 20):.1f} MiB"


def count(number: int) -> str:
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)
