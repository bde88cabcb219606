"""Plain tables: columns padded to their widest cell, two spaces between."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Header and rows as aligned lines, without trailing spaces."""
    lines = [header, *rows]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    return "".join("  ".join(map(_pad, line, widths)).rstrip() + "\n" for line in lines)


def width(text: str) -> int:
    """Columns that `text` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else unicodedata.category(c) not in ("Mn", "Me")
        for c in text
    )


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))
