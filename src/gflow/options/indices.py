"""GPU indices as people write them. Without imports: gctl is in a hurry."""

from __future__ import annotations

GPU_MOST = 1024


def parse_indices(text: str) -> tuple[int, ...] | None:
    """`0,2-3` to (0, 2, 3); None if it is not that."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdecimal() and len(end) <= 4 for end in ends):
            return None
        low, high = map(int, ends)
        if high < low or high >= GPU_MOST:
            return None
        found.update(range(low, high + 1))
    return tuple(sorted(found))
