"""Lines of styled text, bars and sparklines. Text is never read as markup."""

from __future__ import annotations

from collections.abc import Sequence

from gflow.errors import clean
from gflow.text.table import cut, width, wrap

# Pieces of text, each with the name of its style; empty: plain.
Line = tuple[tuple[str, str], ...]
# Styles: attributes and a colour.
STYLES = {
    "": "",
    "bold": "bold",
    "dim": "dim",
    "head": "bold underline",
    "title": "bold reverse",
    "chosen": "reverse",
    "good": "green",
    "busy": "green",
    "memory": "cyan",
    "wait": "yellow",
    "bad": "red",
    "hot": "bold red",
    "key": "bold cyan",
}
SGR = {"bold": "1", "dim": "2", "underline": "4", "reverse": "7"}
COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
EMPTY: Line = ()
LEVELS = "▁▂▃▄▅▆▇█"
# Columns from which a line shows more.
WIDE = 120
FULL, REST = "█", "░"


def plain(text: str, style: str = "") -> Line:
    """A line of one style."""
    return ((clean(text), style),)


def cell(text: str, columns: int) -> str:
    """The text, cut or padded to this number of columns, without control characters."""
    shown = cut(clean(text), columns)
    return shown + " " * (columns - width(shown))


def right(text: str, columns: int) -> str:
    """As `cell`, aligned to the right."""
    shown = cut(clean(text), columns)
    return " " * (columns - width(shown)) + shown


def amount(count: int, noun: str) -> str:
    """A number and its noun: `1 task`, `2 tasks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bar(part: float, columns: int) -> tuple[str, str]:
    """The filled and the empty piece of a bar; `part` is 0 to 1."""
    filled = round(min(1.0, max(0.0, part)) * columns)
    if part > 0 and not filled:
        filled = 1
    return FULL * filled, REST * (columns - filled)


def sparkline(values: Sequence[float | None], columns: int) -> str:
    """The newest values as bars of one line, 0 to 100; a space where there is no reading."""
    shown = values[-columns:]
    text = "".join(
        " " if value is None else LEVELS[min(7, int(max(0.0, value) * 8 / 100))] for value in shown
    )
    return " " * (columns - len(text)) + text


def length(line: Line) -> int:
    """The number of columns of a line."""
    return sum(width(text) for text, _ in line)


def join(left: Line, end: Line, columns: int) -> Line:
    """One line with `end` aligned to the right; `end` is left out where it does not fit."""
    gap = columns - length(left) - length(end)
    return (*left, (" " * gap, ""), *end) if gap > 0 else left


def wrapped(lines: Sequence[str], columns: int) -> list[str]:
    """The lines, each continued on further ones if it is longer than this."""
    return [
        part for line in lines for part in ([line] if width(line) <= columns else wrap(line, max(1, columns)))
    ]


def ansi(line: Line, *, has_colours: bool) -> str:
    """The line as text for a terminal."""
    codes = SGR | COLOURS if has_colours else SGR
    pieces = []
    for text, style in line:
        code = ";".join(codes[word] for word in STYLES[style].split() if word in codes)
        pieces.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(pieces)
