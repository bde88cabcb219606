"""Output of `gjob usage`: table, sparklines and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gflow.text.table import clock, table
from gflow.wire.answers.job_details import ClusterUsage, GpuOnNode, OnNode, UsageAnswer, Used

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
COLUMNS = (
    "at",
    "gpu",
    "span_s",
    "busy",
    "busy_most",
    "memory_mib",
    "power_w",
    "temperature",
    "clock_mhz",
    "slowed",
)


def usage_page(data: UsageAnswer) -> str:
    """The page of `gjob usage`: a row per GPU, then utilisation and memory over time."""
    if not data.totals:
        return f"Job {data.job} has no GPU history: no GPU, a simulated one, or it ended at once.\n"
    rows = [
        [
            str(one.gpu), f"{one.span_s} s", _number(one.busy, "%"), _number(one.busy_most, "%"),
            f"{one.memory_mib} MiB", _number(one.power_w, " W"), _number(one.temperature, " °C"),
            ", ".join(one.slowed) or "-",
        ]
        for one in data.totals
    ]  # fmt: skip
    text = table(("GPU", "TIME", "BUSY", "PEAK", "MEMORY", "POWER", "TEMP", "SLOWED"), rows)
    for total in data.totals:
        samples = [one for one in data.samples if one.gpu == total.gpu]
        if len(samples) > 1:
            text += f"\nGPU {total.gpu} busy    {sparkline([one.busy or 0 for one in samples], 100)}"
            most = max(total.memory_mib or 0, 1)
            text += f"\nGPU {total.gpu} memory  {sparkline([one.memory_mib or 0 for one in samples], most)}"
    return text + ("\n" if not text.endswith("\n") else "")


def sparkline(values: Sequence[float], most: float, width: int = WIDTH) -> str:
    """At most `width` bars, each the mean of an equal share of the values. `most` is a full bar."""
    count = min(width, len(values))
    bars = []
    for place in range(count):
        share = values[place * len(values) // count : (place + 1) * len(values) // count]
        level = sum(share) / len(share) / most if most else 0.0
        bars.append(BARS[min(len(BARS) - 1, max(0, int(level * len(BARS))))])
    return "".join(bars)


def usage_csv(samples: Sequence[Used]) -> str:
    lines = [",".join(COLUMNS)]
    for one in samples:
        lines.append(",".join(_cell(getattr(one, name)) for name in COLUMNS))
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(value)
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


NODE_COLUMNS = ("node", "cpus", "cpus_used", "cpu_time_s", "memory_mib", "processes")
GPU_COLUMNS = ("gpu", "busy", "memory_mib", "memory_total_mib", "power_w", "temperature")


def cluster_usage_page(data: UsageAnswer) -> str:
    """The page of `gjob usage` for a job on a cluster: its nodes now, or all of its run."""
    return nodes_page(data.nodes or []) if data.ended is None else _ended_page(data.ended)


def cluster_usage_csv(data: UsageAnswer) -> str:
    """The same as comma-separated values."""
    if data.ended is None:
        return nodes_csv(data.nodes or [])
    names = data.ended.__struct_fields__
    return f"{','.join(names)}\n{','.join(_cell(getattr(data.ended, name)) for name in names)}\n"


def _ended_page(one: ClusterUsage) -> str:
    peak = f"{_number(one.peak_task_mib, '')} of {_number(one.memory_mib, '')} MiB"
    gpus = f"{one.gpus} ({one.gpu_percent:.0f}% busy)" if one.gpu_percent is not None else str(one.gpus)
    row = [
        clock(one.elapsed_s), str(one.nodes or "-"), str(one.cpus), clock(one.cpu_time_s),
        _number(one.cpu_percent, "%"), peak, gpus,
    ]  # fmt: skip
    heads = ("TIME", "NODES", "CPUS", "CPU TIME", "CPU USE", "PEAK OF A TASK", "GPUS")
    return table(heads, [row]) + "From Slurm's accounting. CPU USE: the part of the allocated CPU time.\n"


def nodes_page(nodes: Sequence[OnNode]) -> str:
    """The page of `gjob usage` for a job on a cluster: its nodes at present, then their GPUs."""
    rows = [
        [
            one.node, f"{one.cpus_used:.1f} of {one.cpus or '?'}", clock(one.cpu_time_s),
            f"{one.memory_mib} MiB", str(one.processes),
        ]
        for one in nodes
    ]  # fmt: skip
    text = table(("NODE", "CPUS", "CPU TIME", "MEMORY", "PROCESSES"), rows)
    gpus = [
        [
            one.node, str(gpu.gpu), gpu.name, _number(gpu.busy, "%"),
            f"{_number(gpu.memory_mib, '')} of {_number(gpu.memory_total_mib, '')} MiB",
            _number(gpu.power_w, " W"), _number(gpu.temperature, " °C"),
        ]
        for one in nodes
        for gpu in one.gpus
    ]  # fmt: skip
    if gpus:
        text += "\n" + table(("NODE", "GPU", "NAME", "BUSY", "MEMORY", "POWER", "TEMP"), gpus)
    return text + "".join(f"{one.node}: {one.note}\n" for one in nodes if one.note)


def nodes_csv(nodes: Sequence[OnNode]) -> str:
    """A line per GPU, and a line per node without GPUs."""
    lines = [",".join([*NODE_COLUMNS, "gpu", *(f"gpu_{name}" for name in GPU_COLUMNS[1:])])]
    for one in nodes:
        gpus: Sequence[GpuOnNode | None] = one.gpus or [None]
        for gpu in gpus:
            cells = [getattr(one, name) for name in NODE_COLUMNS]
            cells += [getattr(gpu, name, None) for name in GPU_COLUMNS]
            lines.append(",".join(_cell(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def summary(totals: Sequence[Used]) -> str:
    """One line for `gjob show`: `87% busy (peak 100%), peak memory 20.1 GiB, 510 W`."""
    known = [(one.busy, one.busy_most or 0) for one in totals if one.busy is not None]
    parts = []
    if known:
        busy = sum(mean for mean, _ in known) / len(known)
        parts.append(f"{busy:.0f}% busy (peak {max(most for _, most in known)}%)")
    parts.append(f"peak memory {most_memory(totals) / 1024:.1f} GiB")
    power = [one.power_w for one in totals if one.power_w]
    if power:
        parts.append(f"{sum(power) / len(power):.0f} W")
    return ", ".join(parts)


def most_memory(totals: Sequence[Used]) -> int:
    """Peak memory in MiB, of the GPU with the most."""
    return max(int(one.memory_mib or 0) for one in totals)


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"
