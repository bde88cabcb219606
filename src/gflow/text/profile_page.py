"""The page of gjob profile: where the time and the memory of the recorded steps went."""

from __future__ import annotations

from typing import Any

from gflow.text.table import Sheet, cut, wrap

ROWS = 8
KERNELS = 5
# Columns of a row besides the name, about.
FIGURES = 40


def profile_page(view: dict[str, Any], columns: int = 80) -> str:
    """The figures of a profile (`client.profile_trace.profile_view`) as text."""
    parts = ["".join(f"{line}\n" for line in _summary(view, columns))]
    clock = "gpu_us" if view["gpu_busy"] is not None else "cpu_us"
    size = "gpu_bytes" if clock == "gpu_us" else "cpu_bytes"
    parts.append(_table(f"OPERATOR BY {clock[:3].upper()} TIME", view["by_time"][:ROWS], clock, columns))
    parts.append(_table("KERNEL", view["kernels"][:KERNELS], "gpu_us", columns))
    parts.append(_table("OPERATOR BY MEMORY", view["by_memory"][:ROWS], size, columns))
    parts.append(_files(view["files"]))
    return "\n".join(part for part in parts if part)


def _summary(view: dict[str, Any], columns: int) -> list[str]:
    steps, seconds = view["steps"], view["seconds"]
    last = view["first_step"] + steps - 1
    which = f"steps {view['first_step']} to {last}" if steps > 1 else f"step {last}"
    facts = [f"Job {view['job']} on {view['device']}: {which} in {seconds:.2f} s"]
    if steps:
        facts.append(f"{1000 * seconds / steps:.1f} ms per step")
    if view["gpu_busy"] is not None:
        facts.append(f"GPU busy {view['gpu_busy']:.0%}")
    if view["data_loading"] is not None:
        facts.append(f"waiting for data {view['data_loading']:.0%}")
    lines = wrap(", ".join(facts), columns)
    if view["memory"] is not None:
        memory = ", ".join(
            f"{name.replace('_', ' ')} {_bytes(value)}" for name, value in view["memory"].items()
        )
        lines += wrap(f"Memory: {memory}", columns)
    return lines + [line for note in view["notes"] for line in wrap(f"Note: {note}", columns)]


def _table(title: str, rows: list[dict[str, Any]], figure: str, columns: int) -> str:
    if not rows:
        return ""
    is_time = figure.endswith("_us")
    sheet = Sheet((title, "CALLS", "TIME" if is_time else "MEMORY", "SHARE"))
    for row in rows:
        value = f"{row[figure] / 1000:.2f} ms" if is_time else _bytes(row[figure])
        sheet.add(
            [cut(row["name"], max(20, columns - FIGURES)), str(row["calls"]), value, f"{row['share']:.0%}"]
        )
    return "".join(sheet.lines())


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _files(found: dict[str, str | None]) -> str:
    lines = [
        f"Trace: {found['trace']} (https://ui.perfetto.dev, chrome://tracing)",
        f"Tables: {found['operators']}",
    ]
    if found["memory_snapshot"]:
        lines.append(f"Memory: {found['memory_snapshot']} (https://pytorch.org/memory_viz)")
    return "".join(f"{line}\n" for line in lines)
