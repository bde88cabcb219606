"""Pages of gflow memory: the memory of each GPU, its processes and their jobs, and what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gflow.text.gpus import NONE, simulated_line, spell_mib
from gflow.text.table import Sheet, wrap
from gflow.wire.answers.gpu_memory import GpuMemory, GpuMemoryAnswer, MemoryUse, Offer

COLUMNS = ("PID", "USER", "MEMORY", "PEAK", "JOB")
WATCH_COLUMNS = ("PID", "USER", "MEMORY", "GROWTH", "PEAK", "JOB")
# Memory that is used and belongs to no process is shown from here on: the driver's own is less.
SMALL_MIB = 64


class Trace(NamedTuple):
    """Memory of a process since a watch began: at first, and the most."""

    first_mib: int
    peak_mib: int


# (GPU index, pid) -> its trace.
Traces = Mapping[tuple[int, int], Trace]


def memory_page(found: GpuMemoryAnswer, columns: int = 0, traces: Traces | None = None) -> str:
    """A paragraph for each GPU. `traces`: of the watch that shows the page."""
    if not found.gpus:
        return NONE + (f"({found.trouble})\n" if found.trouble else "")
    widths = [0] * len(COLUMNS if traces is None else WATCH_COLUMNS)
    sheets = [_sheet(gpu, traces, widths) for gpu in found.gpus]
    parts = [
        _head(gpu) + "\n" + _indented(sheet, columns) + _rest(gpu, columns)
        for gpu, sheet in zip(found.gpus, sheets, strict=True)
    ]
    return "\n".join(parts) + simulated_line(sum(gpu.simulated for gpu in found.gpus))


def _head(gpu: GpuMemory) -> str:
    model = gpu.model.removeprefix("NVIDIA ")
    if gpu.used_mib is None or gpu.free_mib is None:
        why = "simulated, so there are no readings" if gpu.simulated else "it cannot be read"
        return f"GPU {gpu.index}: {model}, {spell_mib(gpu.memory_mib)} ({why})"
    share = round(100 * gpu.used_mib / gpu.memory_mib) if gpu.memory_mib else 0
    return (
        f"GPU {gpu.index}: {model}, {spell_mib(gpu.used_mib)} of {spell_mib(gpu.memory_mib)} used "
        f"({share} %), {spell_mib(gpu.free_mib)} free"
    )


def _sheet(gpu: GpuMemory, traces: Traces | None, widths: list[int]) -> Sheet | None:
    """The table of a GPU's processes, aligned with those of the other GPUs; None: there are none."""
    if not gpu.processes:
        return None
    sheet = Sheet(COLUMNS if traces is None else WATCH_COLUMNS, widths=widths)
    for one in gpu.processes:
        memory = "-" if one.memory_mib is None else spell_mib(one.memory_mib)
        figures = [_peak(one)] if traces is None else _traced(one, traces.get((gpu.index, one.pid or 0)))
        sheet.add([str(one.pid or "-"), one.user, memory, *figures, _what(one)])
    return sheet


def _indented(sheet: Sheet | None, columns: int) -> str:
    if sheet is None:
        return ""
    return "".join("  " + line for line in sheet.lines(max(0, columns - 2), [[1]], wraps=True))


def _peak(one: MemoryUse) -> str:
    return "-" if one.job_peak_mib is None else spell_mib(one.job_peak_mib)


def _traced(one: MemoryUse, trace: Trace | None) -> list[str]:
    if trace is None or one.memory_mib is None:
        return ["-", "-"]
    growth = one.memory_mib - trace.first_mib
    sign = "+" if growth > 0 else "-" if growth < 0 else ""
    return [sign + spell_mib(abs(growth)) if growth else "0", spell_mib(trace.peak_mib)]


def _what(one: MemoryUse) -> str:
    """The job of a process, else that it has none; its limit, its command, and a note."""
    if not one.is_job:
        who = "not a job of gflow"
    else:
        who = "another job" if one.job_id is None else f"{one.job_id} ({one.job_name})"
    limit = f"limit {spell_mib(one.job_limit_mib)}" if one.job_limit_mib else ""
    return ", ".join(filter(None, (who, limit, one.note, one.command)))


def _rest(gpu: GpuMemory, columns: int) -> str:
    """Memory of no process, and what a new job can get."""
    lines = []
    if gpu.other_mib is not None and gpu.other_mib >= SMALL_MIB:
        lines.append(f"Of no listed process: {spell_mib(gpu.other_mib)} (driver contexts)")
    if gpu.offer is not None:
        lines.append(f"New jobs: {_offer(gpu.offer, gpu.memory_mib)}")
    return "".join(f"  {part}\n" for line in lines for part in wrap(line, max(20, (columns or 80) - 2)))


def _offer(offer: Offer, total_mib: int) -> str:
    if offer.reason is not None:
        return f"none ({offer.reason})"
    gib = offer.memory_mib // 1024
    size = f"{gib}G" if gib else f"{offer.memory_mib}M"
    if offer.shared:
        share = 100 * offer.memory_mib // total_mib
        return f"{spell_mib(offer.memory_mib)} ({share} %) with --shared --gpu-memory {size}"
    return f"all of it (--gpus 1), or up to {size} with --shared --gpu-memory"
