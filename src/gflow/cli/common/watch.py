"""Repeat a query (--watch): redraw in place on a terminal, append elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gflow.client import hot_path
from gflow.errors import Unreachable
from gflow.text.table import cut

HOME, CLEAR, REST_OF_LINE, REST = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
UNREACHABLE = "(daemon unreachable since {}; retrying)"


def watch(
    ask: Callable[[], bytes],
    interval_s: float,
    title: str,
    *,
    is_data: bool = False,
    count: int | None = None,
) -> int:
    """Show the answers of `ask` until Ctrl-C. If the daemon goes away, retry until it is back.

    `is_data`: the answers are for programs, and nothing else is printed. `count`: end after so many.
    """
    is_terminal = os.isatty(1) and not is_data
    draw = _print if is_data else _draw if is_terminal else _append
    text = ask().decode(errors="replace")  # at the start, an unreachable daemon is an error
    away = ""
    try:
        if is_terminal:
            hot_path.write(1, (HIDE_CURSOR + CLEAR).encode())
        while True:
            draw(
                "" if is_data and away else text + (away + "\n" if away else ""),
                f"Every {interval_s} s: {title}",
            )
            if count is not None and (count := count - 1) <= 0:
                return 0
            time.sleep(interval_s)
            try:
                text, away = ask().decode(errors="replace"), ""
            except (ConnectionError, Unreachable):
                away = away or UNREACHABLE.format(time.strftime("%H:%M:%S"))
    except KeyboardInterrupt:
        return 0
    finally:
        if is_terminal:
            hot_path.write(1, SHOW_CURSOR.encode())


def _draw(text: str, title: str) -> None:
    """Overwrite the screen line by line instead of clearing it, to avoid flicker."""
    size = os.get_terminal_size(1)  # 0 x 0 if the terminal does not say it
    lines = text.splitlines()
    room = max(1, size.lines - 3)
    if size.lines and len(lines) > room:
        lines = [*lines[: room - 1], f"({len(lines) - room + 1} more lines)"]
    clock = time.strftime("%H:%M:%S")
    columns = size.columns or 80
    head = cut(title, max(1, columns - len(clock) - 2))
    head += " " * (columns - len(head) - len(clock)) + clock
    frame = "".join(line + REST_OF_LINE + "\n" for line in [head, "", *lines])
    hot_path.write(1, (HOME + frame + REST).encode())


def _print(text: str, title: str) -> None:
    hot_path.write(1, text.encode())


def _append(text: str, title: str) -> None:
    hot_path.write(1, (text + "\n").encode())
