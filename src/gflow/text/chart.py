"""Memory against the batch, on a terminal: a line for each batch, and where the cards end."""

from __future__ import annotations

import math
from string import ascii_lowercase
from typing import Any

GIB = 1 << 30
WIDTH = 80
LEAST = 20


def chart_page(found: Any, width: int = 0) -> str:
    """Memory grows to the right, each column by the same factor."""
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
