"""Efficiency of an ended job: what it used of what it had, as Slurm's accounting recorded it. Pure."""

from __future__ import annotations

import math
import re

from gflow.wire.answers.job_details import ClusterUsage

FORMAT = "JobID,ElapsedRaw,AllocCPUS,AllocTRES,TotalCPU,MaxRSS,TRESUsageInAve"
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_CPU_TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)")


def parse_efficiency(text: str) -> ClusterUsage | None:
    """Parse `sacct -P -n -o FORMAT` of one job: its allocation, then its steps. None: no run is recorded."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == FORMAT.count(",")]
    if not rows or not rows[0][1].isdecimal() or not rows[0][2].isdecimal():
        return None
    _, elapsed, cpus, had, cpu_time, _, _ = rows[0]
    elapsed_s, cpu_time_s, resources = int(elapsed), _parse_cpu_time(cpu_time), _parse_tres(had)
    peaks = [mib for row in rows[1:] if (mib := _parse_mib(row[5])) is not None]
    busy = [
        use for row in rows[1:] if (use := _parse_number(_parse_tres(row[6]).get("gres/gpuutil"))) is not None
    ]
    available_s = elapsed_s * int(cpus)
    return ClusterUsage(
        elapsed_s=elapsed_s,
        nodes=int(_parse_number(resources.get("node")) or 0),
        cpus=int(cpus),
        cpu_time_s=cpu_time_s,
        cpu_percent=round(100 * cpu_time_s / available_s, 1) if available_s else None,
        peak_task_mib=round(max(peaks)) if peaks else None,
        memory_mib=round(_parse_mib(resources.get("mem", "")) or 0) or None,
        gpus=int(_parse_number(resources.get("gres/gpu")) or 0),
        gpu_percent=max(busy) if busy else None,
    )


def _parse_tres(text: str) -> dict[str, str]:
    """`cpu=4,mem=16G,gres/gpu=2`"""
    pairs = (word.partition("=") for word in text.split(","))
    return {name: value for name, _, value in pairs}


def _parse_cpu_time(text: str) -> float:
    """`[DAYS-[HOURS:]]MINUTES:SECONDS[.MS]`"""
    found = _CPU_TIME.fullmatch(text)
    if found is None:
        return 0.0
    days, hours, minutes, seconds = found.groups(default="0")
    return ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + float(seconds)


def _parse_mib(text: str) -> float | None:
    """`16000M`, `1.50G`; a plain number is in bytes."""
    number = _parse_number(text.rstrip("KMGT"))
    return None if number is None else number * _UNITS.get(text[-1:], 1 / 1024**2)


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
