"""The lines of the GPUs: memory and utilisation as bars, recent utilisation, and who has each GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from gflow.tui.line import WIDE, Line, amount, bar, cell, plain, right, sparkline

# Readings that are remembered of each GPU: ten minutes at one every two seconds.
REMEMBERED = 300


class GpuHistory:
    """Utilisation of each GPU since the program started."""

    def __init__(self) -> None:
        self._of: dict[int, deque[float | None]] = {}

    def add(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        for gpu in gpus:
            values = self._of.setdefault(gpu["index"], deque(maxlen=REMEMBERED))
            values.append(gpu.get("utilisation"))

    def of(self, index: int) -> list[float | None]:
        return list(self._of.get(index, ()))


def gpu_lines(gpus: Sequence[Mapping[str, Any]], history: GpuHistory, columns: int, most: int) -> list[Line]:
    """One line for each GPU; if there are more than `most`, the last line says how many are left out."""
    if not gpus:
        return [plain("No GPUs: jobs without --gpus run here as usual.", "dim")]
    shown = gpus if len(gpus) <= most else gpus[: most - 1]
    lines = [_gpu_line(gpu, history.of(gpu["index"]), columns) for gpu in shown]
    if len(shown) < len(gpus):
        free = sum(gpu["available"] for gpu in gpus[len(shown) :])
        lines.append(plain(f"{amount(len(gpus) - len(shown), 'more GPU')}, {free} free: ginfo", "dim"))
    return lines


def heading(columns: int) -> Line:
    """What the columns of the lines of GPUs are."""
    bars, past = (20, 40) if columns >= WIDE else (8, 12)
    model = cell("MODEL", 19) if columns >= WIDE else ""
    use = cell("USE", bars + 6) + cell("RECENT", past + 1) + cell("TEMP", 5)
    power = cell("POWER", 7) if columns >= WIDE else ""
    return (("   " + model + cell("MEMORY", bars + 9) + use + power + "JOB", "dim"),)


def _gpu_line(gpu: Mapping[str, Any], history: list[float | None], columns: int) -> Line:
    is_wide = columns >= WIDE
    pieces = [(right(str(gpu["index"]), 2) + " ", "bold")]
    if is_wide:
        pieces.append((cell(str(gpu["model"]).removeprefix("NVIDIA "), 18) + " ", ""))
    if gpu.get("used_mib") is None:
        why = "simulated" if gpu["simulated"] else "no readings"
        pieces.append((cell(f"{gpu['memory_mib'] / 1024:.0f} GiB, {why}", 24) + " ", "dim"))
    else:
        pieces += _readings(gpu, history, is_wide)
    room = columns - sum(len(text) for text, _ in pieces)
    text, style = _holder(gpu)
    return (*pieces, (cell(text, max(0, room)), style))


def _readings(gpu: Mapping[str, Any], history: list[float | None], is_wide: bool) -> list[tuple[str, str]]:
    """Memory, utilisation and temperature, with bars."""
    columns, past = (20, 40) if is_wide else (8, 12)
    used, size = gpu["used_mib"] / 1024, gpu["memory_mib"] / 1024
    busy = gpu.get("utilisation")
    filled, empty = bar(used / size if size else 0.0, columns)
    pieces = [(filled, "memory"), (empty, "dim"), (right(f"{used:.0f}/{size:.0f}G", 8) + " ", "")]
    if busy is None:
        return [*pieces, (cell("  no utilisation", columns + 6), "dim")]
    filled, empty = bar(busy / 100, columns)
    pieces += [(filled, "busy"), (empty, "dim"), (f" {busy:3}% ", "")]
    pieces += [(sparkline(history, past) + " ", "busy")]
    heat = gpu.get("temperature")
    pieces.append((f"{heat:2}°C " if heat is not None else "     ", "hot" if (heat or 0) >= 85 else ""))
    if is_wide:
        power = gpu.get("power_w")
        pieces.append((f"{power:4.0f} W " if power is not None else "       ", ""))
    return pieces


def _holder(gpu: Mapping[str, Any]) -> tuple[str, str]:
    """The holder of the GPU, or why it gets no job."""
    jobs = [
        "another job" if job["id"] is None else f"{job['id']} {job['name']} ({job['user']})"
        for job in gpu["holders"]
    ]
    reason = gpu.get("reason") or ""
    if not jobs:
        if not reason and gpu.get("reserved"):
            return f"reserved for {gpu['reserved'][0]['user']}", "wait"
        return (reason, "bad") if reason else ("free", "good")
    return ", ".join(jobs) + (f"; then {reason}" if reason else ""), ""
