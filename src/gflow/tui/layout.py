"""The layout of the screen, without textual: which lines are where, and the first frame.

The first frame is written before textual is imported, which takes most of the start.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from gflow.tui.gpu_lines import GpuHistory, gpu_lines, heading
from gflow.tui.job_rows import Row, columns_of, row_line, rows_of
from gflow.tui.line import Line, amount, ansi, cell, join, plain
from gflow.tui.queue_feed import View

# Height from which the columns of the GPUs have headings.
ROOMY = 30
SHORT_KEYS = (
    ("?", "keys"), ("/", "filter"), ("Enter", "log"), ("c", "cancel"), ("h", "hold"), ("r", "release"),
    ("d", "redo"), ("+-", "priority"), ("q", "quit"),
)  # fmt: skip
KEY_LINE: Line = tuple(piece for key, what in SHORT_KEYS for piece in ((key, "key"), (f" {what} ", "")))
ALTERNATE_SCREEN, USUAL_SCREEN = "\x1b[?1049h\x1b[H", "\x1b[?1049l"


class Heights(NamedTuple):
    """Lines of each part of the screen. The header and the keys have one each."""

    gpus: int
    jobs: int
    log: int


def heights_of(height: int, gpus: int) -> Heights:
    """Divide a screen: the log gets two fifths of what the GPUs leave."""
    rest = max(4, height - gpus - 2)
    log = max(3, rest * 2 // 5)
    return Heights(gpus, rest - log, log)


def gpu_part(view: View, history: GpuHistory, columns: int, height: int) -> list[Line]:
    """The lines of the GPUs, at most a third of the screen."""
    lines = gpu_lines(view.gpus, history, columns, max(2, height // 3))
    if height >= ROOMY and any("utilisation" in gpu for gpu in view.gpus):
        lines.insert(0, heading(columns))
    return lines


def header_line(view: View, columns: int) -> Line:
    """Totals, problems, the version of the daemon and the time."""
    listing = view.listing
    used = sum(bool(gpu["holders"]) for gpu in view.gpus)
    free = sum(bool(gpu["available"]) for gpu in view.gpus)
    left: Line = (
        (" gflow top ", "title"),
        (f" {listing.running_total:,} running, {listing.waiting_total:,} waiting", "bold"),
    )
    gpus: Line = (
        ((f"   {amount(len(view.gpus), 'GPU')}: {used} in use, {free} free", ""),) if view.gpus else ()
    )
    if view.away:
        return (*left, (cell(f"   daemon away since {view.away}, trying again", columns), "bad"))
    if view.drained is not None:
        left = (*left, (f"   drained{': ' + view.drained if view.drained else ''}", "wait"))
    clock = time.strftime("%H:%M:%S ")
    for end in (f"gflowd {view.version}  {clock}", clock):
        whole = join((*left, *gpus), plain(end), columns)
        if len(whole) > len(left) + len(gpus):
            return whole
    return (*left, *gpus)


def job_lines(rows: list[Row], top: int, room: int, columns: int, nothing: str) -> list[Line]:
    """The lines of the rows from `top` on; the sentence `nothing` if there are no rows."""
    widths, now = columns_of(rows, columns), time.time()
    return [row_line(row, widths, now) for row in rows[top : top + room]] or [plain(nothing, "dim")]


def nothing_to_show(wanted: str = "") -> str:
    if wanted:
        return f"No job matches {wanted!r}; Esc shows all."
    return "No jobs. Submit one: gbatch --gpus 1 python train.py"


def first_frame(view: View, columns: int, height: int, *, has_colours: bool) -> str:
    """The whole screen without a log, as text for a terminal."""
    gpus = gpu_part(view, GpuHistory(), columns, height)
    heights = heights_of(height, len(gpus))
    jobs = job_lines(rows_of(view.listing, "", frozenset()), 0, heights.jobs, columns, nothing_to_show())
    blank: Line = ()
    lines = [header_line(view, columns), *gpus, *jobs, *[blank] * (heights.jobs - len(jobs))]
    lines += [((cell(" Log", columns), "title"),), *[blank] * (heights.log - 1), KEY_LINE]
    shown = (ansi(line, has_colours=has_colours) for line in lines[:height])
    return ALTERNATE_SCREEN + "\x1b[K\r\n".join(shown)
