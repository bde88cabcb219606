"""Tables, durations and times for terminals. Columns are padded to their widest cell, two spaces apart.

Unprintable characters in cells are escaped, so that a cell stays on its line and cannot control the
terminal.
"""

from __future__ import annotations

import textwrap
import time
import unicodedata
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from gflow.errors import clean

# Minimum width of a column that may be truncated.
NARROW = 16
# Columns that are truncated leave this much room for a last column that wraps.
ROOM = 36
# Indent of wrapped text that starts below its row.
INDENT = 7


class Sheet:
    """A table that is filled row by row and then read line by line, so that a long one is made in slices.

    `styles`: column index -> text of a cell -> SGR code.
    `widths`: widths of another sheet, to align with it; shared, and updated in place.
    """

    def __init__(
        self,
        header: Sequence[str],
        styles: Mapping[int, Mapping[str, str]] | None = None,
        widths: list[int] | None = None,
    ) -> None:
        self._header = "\t".join(header)
        self._styles = styles or {}
        self._rows: deque[str] = deque()
        self.widths = [0] * len(header) if widths is None else widths
        self._lengths: set[tuple[int, ...]] = set()
        self._widen(tuple(map(width, header)))

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, cells: Sequence[str]) -> None:
        if not "".join(cells).isprintable():
            cells = [clean(cell) for cell in cells]
        # One string per row: 100,000 lists would slow down the garbage collector.
        row = "\t".join(cells)
        self._rows.append(row)
        lengths = tuple(map(len if row.isascii() else width, cells))
        if lengths not in self._lengths:  # most rows have lengths seen before
            self._widen(lengths)

    def _widen(self, lengths: tuple[int, ...]) -> None:
        if len(lengths) != len(self.widths):
            raise ValueError(f"{len(lengths)} cells for {len(self.widths)} columns")
        self._lengths.add(lengths)
        self.widths[:] = map(max, self.widths, lengths)

    def lines(
        self, columns: int = 0, cuttable: Sequence[Sequence[int]] = (), *, wraps: bool = False
    ) -> Iterator[str]:
        """Yield the lines without trailing spaces, header first. Rows are removed as they are read.

        If lines are longer than `columns`, cells of `cuttable` columns are truncated, group by group.
        `wraps`: the last column continues on further lines instead.
        """
        if wraps and columns and sum(self.widths) + 2 * (len(self.widths) - 1) > columns:
            yield from self._wrapped_lines(columns, cuttable)
            return
        widths = fit(self.widths, columns, cuttable) if columns else self.widths
        is_plain = widths == self.widths and not self._styles
        pattern = "  ".join(f"%-{n}s" for n in widths)
        yield self._line(self._header.split("\t"), widths, {})
        while self._rows:
            row = self._rows.popleft()
            if is_plain and row.isascii():
                yield (pattern % tuple(row.split("\t"))).rstrip() + "\n"
            else:
                yield self._line(row.split("\t"), widths, self._styles)

    def _wrapped_lines(self, columns: int, cuttable: Sequence[Sequence[int]]) -> Iterator[str]:
        """Yield the lines for a terminal that is too narrow; the last column wraps."""
        last = len(self.widths) - 1
        groups = [[index for index in group if index != last] for group in cuttable]
        widths = fit([*self.widths[:last], min(self.widths[last], ROOM)], columns, groups)
        start = sum(widths[:last]) + 2 * last
        room = columns - start
        yield self._line(self._header.split("\t"), [*widths[:last], self.widths[last]], {})
        while self._rows:
            *cells, text = self._rows.popleft().split("\t")
            if width(text) > room < NARROW:
                parts, indent = ["", *wrap(text, max(1, columns - INDENT))], INDENT
            else:
                parts, indent = wrap(text, max(NARROW, room)), start
            row_widths = [*widths[:last], max(map(width, parts))]
            yield self._line([*cells, parts[0]], row_widths, self._styles)
            for part in parts[1:]:
                yield " " * indent + part + "\n"

    @staticmethod
    def _line(cells: list[str], widths: Sequence[int], styles: Mapping[int, Mapping[str, str]]) -> str:
        shown = []
        for index, (cell, columns) in enumerate(zip(cells, widths, strict=True)):
            text = cut(cell, columns)
            code = styles[index].get(cell) if index in styles else None
            padding = " " * (columns - width(text))
            shown.append((f"\x1b[{code}m{text}\x1b[0m" if code else text) + padding)
        return "  ".join(shown).rstrip() + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Header and rows as aligned lines."""
    sheet = Sheet(header)
    for row in rows:
        sheet.add(row)
    return "".join(sheet.lines())


def fit(widths: Sequence[int], columns: int, cuttable: Sequence[Sequence[int]]) -> list[int]:
    """Reduce widths to a terminal of `columns`: group by group, always the widest column of the group."""
    kept = list(widths)
    over = sum(kept) + 2 * (len(kept) - 1) - columns
    for group in cuttable:
        while over > 0 and max((kept[index] for index in group), default=0) > NARROW:
            kept[max(group, key=kept.__getitem__)] -= 1
            over -= 1
    return kept


def wrap(text: str, columns: int) -> list[str]:
    """The lines of `text` at this width, broken at spaces where there are some; at least one line."""
    return textwrap.wrap(text, columns, break_on_hyphens=False) or [""]


def cut(text: str, columns: int) -> str:
    """Truncate `text` to `columns`, with an ellipsis."""
    if width(text) <= columns:
        return text
    kept, taken = "", 0
    for char in text:
        taken += width(char)
        if taken > columns - 1:
            break
        kept += char
    return kept + "…"


def width(text: str) -> int:
    """Number of terminal columns of `text`."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else unicodedata.category(c) not in ("Mn", "Me")
        for c in text
    )


def clock(seconds: float) -> str:
    """A duration as `00:05:30`, or `1-02:00:00` from one day on."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def moment(seconds: float, *, to_minutes: bool = False) -> str:
    """A time in the local zone, as `2026-11-16 13:18:42`, or to the minute."""
    return time.strftime("%Y-%m-%d %H:%M" if to_minutes else "%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def near_moment(seconds: float, now: float) -> str:
    """A time to the minute: `13:18` on the day of `now`, else with its date."""
    text = moment(seconds, to_minutes=True)
    return text[11:] if text[:10] == moment(now)[:10] else text


def fine(seconds: float) -> str:
    """A duration as `0.25 s` below a minute, else as `clock`."""
    return f"{seconds:.2f} s" if seconds < 60 else clock(seconds)
