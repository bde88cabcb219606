"""Pages of `gflow fit` and `gflow plan`: memory, breakdown, fitting GPUs, and a chart by batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from string import ascii_lowercase
from typing import Any

from gflow.text.table import Sheet, table

GIB = 1 << 30
# What the levels of confidence mean for each figure, by the measured cases.
ALLOCATED = {"high": "usually within 1 %", "medium": "usually within 5 %", "rough": "may be off by half"}
RESERVED = {
    "high": "usually within 3 %",
    "medium": "usually within 10 %",
    "low": "may be off by a third",
    "rough": "may be off by half",
}


# Columns of a table of training configurations. The last one wraps.
WAYS = ("BATCH", "ON EACH", "SPEED", "WITH")
BATCH = "(batch: micro-batch x accumulation steps)"
# Below this share of the memory, configurations that save memory are not worth a line.
ROOMY = 0.5


def page(found: Any, fits: bool | None = None) -> str:
    """The memory of a training run. `fits`: the verdict for the GPU that was named, which comes first."""
    lines = [] if fits is None else [f"it {'fits' if fits else 'does not fit'}", ""]
    lines += [
        f"peak allocated  {size(found.peak_allocated_bytes):>10}   torch.cuda.max_memory_allocated()",
        f"peak reserved   {size(found.peak_reserved_bytes):>10}   including the allocator's cache",
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
    lines.append(f"parameters: {count(found.total_params)} ({count(found.trainable_params)} trainable)")
    allocated, reserved = found.confidence_allocated, found.confidence_reserved
    lines.append(f"confidence in allocated: {allocated} ({ALLOCATED[allocated]})")
    lines.append(f"confidence in reserved:  {reserved} ({RESERVED[reserved]})")
    lines += [f"  {doubt}" for doubt in found.doubts]
    if found.torch and not found.torch.startswith(found.measured_with):
        lines.append(f"  predicted with PyTorch {found.torch}, measured with {found.measured_with}")
    if found.largest:
        rows = [[size(held.bytes), held.kind, held.module or "-", held.operator] for held in found.largest]
        lines += ["", table(["LARGEST", "FOR", "MODULE", "ALLOCATED BY"], rows).rstrip("\n")]
    return "\n".join(lines) + "\n"


def cards(page: dict[str, Any], width: int = 0) -> str:
    """Which GPUs have enough memory; for a GPU that was named and is too small, what would help."""
    lines = []
    if page["gpus"]:
        rows = [
            [card.gpu, card.fits, f"{100 * card.share:.0f} %", money(card.hourly, card.is_compared)]
            for card in page["gpus"]
        ]
        lines += ["", table(["GPU", "FITS", "OF ITS MEMORY", "$/HOUR"], rows).rstrip("\n")]
        notes = price_notes((card.hourly, card.is_compared) for card in page["gpus"])
        lines += [notes] if notes else []
    if not page.get("fits", True):
        lines += ["", _remedies(page["would_fit"], width)]
    if "largest_batch" in page:
        largest = page["largest_batch"]
        lines.append(f"largest batch: {largest}" if largest else "no batch fits, not even one example")
    return "\n".join(lines) + "\n" if lines else ""


def serving_page(found: Any, gpus: int) -> str:
    each = " on each GPU" if gpus > 1 else ""
    verdict = f"it {'fits' if found.fits else 'does not fit'}\n\n" if "fits" in found else ""
    rows = [
        ["weights", size(found.weights_bytes)],
        ["keys and values", size(found.cache_bytes)],
        ["temporaries", size(found.temporaries_bytes)],
        ["whole process", size(found.process_bytes)],
    ]
    return (
        verdict
        + table([f"MEMORY{each.upper()}", "SIZE"], rows)
        + f"a token takes {found.cache_bytes_per_token / 1024:.0f} KiB of the cache\n"
        + f"parameters: {count(found.total_params)}; confidence: {found.confidence}\n"
    )


def _remedies(ways: list[Any], width: int) -> str:
    if not ways:
        return "no technique known to gflow plan makes it fit; try more GPUs or --lora 16"
    rows = _table(WAYS, [_way(way) for way in ways], width)
    return f"with the same batch, these configurations fit:\n{rows}{BATCH}"


def plan_page(plan: Any, command: str, width: int = 0) -> str:
    """The chosen way and its alternatives. `width`: columns of the terminal; 0: unknown."""
    rows = [
        [f"{number} take" if way is plan.chosen else f"{number}", f"{way.gpus}x {plan.gpu}", *_way(way)]
        for number, way in enumerate(plan.ways, 1)
        if way is plan.chosen or _is_worth_a_line(way, plan.chosen)
    ]
    tools = plan.chosen.tools
    needs = [f"  gflow.train alone cannot carry it out: it needs {' and '.join(tools)}"] if tools else []
    lines = [
        f"effective batch {plan.effective_batch}, sequence {plan.sequence}, {plan.precision}; "
        f"confidence: {plan.confidence}",
        *needs,
        *(f"  {doubt}" for doubt in (*plan.doubts, *plan.advice)),
        BATCH,
        command,
    ]
    return _table(("WAY", "GPUS", *WAYS), rows, width) + "\n".join(lines) + "\n"


def _is_worth_a_line(way: Any, chosen: Any) -> bool:
    """Whether an alternative is faster, or saves GPUs, or memory where it is scarce."""
    is_faster = way.relative_speed > chosen.relative_speed
    return bool(is_faster or way.gpus < chosen.gpus or chosen.share >= ROOMY)


def _table(header: Sequence[str], rows: list[list[str]], width: int) -> str:
    sheet = Sheet(header)
    for row in rows:
        sheet.add(row)
    return "".join(sheet.lines(width, wraps=True))


def _way(way: Any) -> list[str]:
    return [
        f"{way.micro_batch} x {way.accumulate}",
        f"{size(way.bytes)} ({100 * way.share:.0f} %)",
        f"{100 * way.relative_speed:.0f} %",
        ", ".join(_techniques(way)) or "nothing special",
    ]


def _techniques(way: Any) -> list[str]:
    found = ["checkpointing"] if way.checkpointing else []
    found += [way.sharding] if way.sharding != "none" else []
    found += ["8-bit optimizer"] if way.eight_bit else []
    return found + (["offloaded optimizer"] if way.offload else [])


def price_notes(prices: Iterable[tuple[float | None, bool]]) -> str:
    """What the marks of `money` mean, for those that occur; empty if none does."""
    known = list(prices)
    notes = ["- no price known"] if any(amount is None for amount, _ in known) else []
    notes += ["~ unverified price"] if not all(is_compared for _, is_compared in known) else []
    return f"({'; '.join([*notes, 'sources: gflow gpus --json'])})" if notes else ""


def money(amount: float | None, is_compared: bool = True) -> str:
    return "-" if amount is None else f"{'' if is_compared else '~'}{amount:.2f}"


def size(amount: int) -> str:
    return f"{amount / GIB:.2f} GiB" if amount >= GIB else f"{amount / (1 << 20):.1f} MiB"


def count(number: int) -> str:
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


WIDTH = 80
LEAST = 20


def chart_page(found: Any, width: int = 0) -> str:
    """Memory by batch size, one row each, with the capacity of GPUs as vertical lines. Logarithmic scale."""
    labels = [(str(point.batch), f"{point.bytes / GIB:.1f} GiB") for point in found.points]
    first = max(5, *(len(batch) for batch, _ in labels))
    second = max(6, *(len(size) for _, size in labels))
    room = max(LEAST, (width or WIDTH) - first - second - 5)
    place = _scale(found, room)
    marks = {place(limit.bytes): name for limit, name in zip(found.limits, ascii_lowercase, strict=False)}
    head = "".join(marks.get(column, " ") for column in range(room)).rstrip()
    lines = [f"{'BATCH':<{first}}  {'MEMORY':>{second}}  {head}"]
    for point, (batch, size) in zip(found.points, labels, strict=True):
        at = place(point.bytes)
        row = "".join(
            "●" if column == at else "┆" if column in marks else "━" if column < at else " "
            for column in range(room)
        )
        lines.append(f"{batch:<{first}}  {size:>{second}}  {row}".rstrip())
    return "\n".join([*lines, "", *_legend(found)]) + "\n"


def _scale(found: Any, room: int) -> Any:
    sizes = [point.bytes for point in found.points] + [limit.bytes for limit in found.limits]
    low, high = math.log(min(sizes) * 0.9), math.log(max(sizes))
    return lambda size: round((math.log(size) - low) / (high - low) * (room - 1))


def _legend(found: Any) -> list[str]:
    lines = []
    for limit, name in zip(found.limits, ascii_lowercase, strict=False):
        fits = f"batch {limit.batch} fits" if limit.batch else "nothing fits"
        lines.append(f"{name}  {limit.bytes / GIB:5.1f} GiB  {fits}: {', '.join(limit.gpus)}")
    return lines
