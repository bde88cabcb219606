"""Pages of ginfo: the line of each GPU, the table by partition, and the details."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import UnsetType

from gflow.core.model import Block, Gpu, Job
from gflow.text.table import Sheet, clock, cut, moment, wrap
from gflow.wire.answers.gpus import GpuView, InfoAnswer, Reserved

# STATE column of a GPU that gets no new jobs, by the kind of its block.
WORDS = {
    "Unmanaged": "allocated", "CannotTell": "unknown", "Unhealthy": "drained", "Lost": "down",
    "Restricted": "restricted",
}  # fmt: skip
# Columns of the line of a GPU besides the name of its job, about; and the least that is left of a name.
OTHER_COLUMNS = 64
SHORTEST_NAME = 16
NONE = "No GPUs: jobs without --gpus run here as usual.\n"


def job_title(job: Job) -> str:
    return f"{job.label} ({job.name})"


def gpu_table(
    gpus: Sequence[Gpu],
    holders: Mapping[int, list[Job]],
    blocked: Mapping[int, Block] | None = None,
    drained: str | None = None,
    title: Callable[[Job], str] = job_title,
) -> str:
    """The table of `ginfo` for programs: a row of idle GPUs, one per job, one per reason of blocked GPUs."""
    blocked = blocked or {}
    if not gpus:
        return NONE + drained_note(drained)
    rows = []
    idle = [gpu.index for gpu in gpus if gpu.index not in holders and gpu.index not in blocked]
    if idle:
        rows.append(["gpu", str(len(idle)), ",".join(map(str, idle)), "idle", ""])
    for job in {job.key: job for jobs in holders.values() for job in jobs}.values():
        ids = ",".join(map(str, job.gpu_ids))
        rows.append(["gpu", str(len(job.gpu_ids)), ids, "allocated", title(job)])
    for why in dict.fromkeys(why for _, why in sorted(blocked.items())):
        indices = sorted(index for index in blocked if blocked[index] == why)
        ids = ",".join(map(str, indices))
        rows.append(["gpu", str(len(indices)), ids, WORDS.get(why.kind, "drained"), f"({why})"])
    sheet = Sheet(("PARTITION", "GPUS", "NODES", "STATE", "JOB(REASON)"))
    for row in rows:
        sheet.add(row)
    return "".join(sheet.lines()) + drained_note(drained) + simulated_note(gpus)


def gpu_lines(info: InfoAnswer, gpus: Sequence[Gpu], columns: int, now: datetime) -> str:
    """The table of `ginfo` on a terminal of this width: one row for each GPU."""
    if not gpus:
        return NONE + drained_note(info.reason)
    sheet = Sheet(("GPU", "MODEL", "MEMORY", "USE", "USER", "SINCE", "UNTIL", "JOB"))
    for view in info.gpus:
        sheet.add(_gpu_row(view, now, max(SHORTEST_NAME, columns - OTHER_COLUMNS)))
    lines = "".join(sheet.lines(columns, [[4], [1]], wraps=True))
    return lines + drained_note(info.reason) + simulated_note(gpus)


def _gpu_row(view: GpuView, now: datetime, name_columns: int) -> list[str]:
    used = "" if view.used_mib is None else f"{bare_gib(view.used_mib)}/"
    started = [job.started_at for job in view.holders if job.started_at]
    since = min(started, default=None)
    if not view.holders and view.idle_s is not None and not view.idle_s_at_least:
        since = (now - timedelta(seconds=view.idle_s)).isoformat()
    users = dict.fromkeys(job.user for job in view.holders)
    return [
        str(view.index),
        view.model.removeprefix("NVIDIA "),
        f"{used}{bare_gib(view.memory_mib)} GiB",
        reading(view.utilisation, "%") or "-",
        ",".join(users) or "-",
        short_time(since, now) if since else "-",
        short_time(view.free_at, now) if view.free_at else "-",
        "; ".join(gpu_notes(view, now, name_columns)),
    ]


def gpu_notes(view: GpuView, now: datetime, name_columns: int) -> list[str]:
    """The jobs of a GPU, else that it is idle; why it gets no jobs; for whom it is reserved."""
    jobs = [
        "another job" if job.id is None else f"{job.id} ({cut(job.name, name_columns)})"
        for job in view.holders
    ]
    is_reserved = any(_has_begun(one, now) for one in view.reserved)
    is_idle = not (jobs or view.reason or is_reserved)
    reserved = ", ".join(_reservation(one, now) for one in view.reserved)
    notes = ["idle" if is_idle else "", ", ".join(jobs), view.reason, reserved and f"reserved {reserved}"]
    return [note for note in notes if note]


def _has_begun(one: Reserved, now: datetime) -> bool:
    return datetime.fromisoformat(one.start) <= now


def _reservation(one: Reserved, now: datetime) -> str:
    begin = "" if _has_begun(one, now) else f"from {short_time(one.start, now)} "
    return f"for {one.user} {begin}until {short_time(one.end, now)}"


def short_time(time: str, now: datetime) -> str:
    """A local time: `14:05` today, else `12-24 14:05`."""
    at, today = datetime.fromisoformat(time).astimezone(), now.astimezone()
    return at.strftime("%H:%M" if at.date() == today.date() else "%m-%d %H:%M")


def bare_gib(mib: int) -> str:
    """Memory in GiB without the unit: `0.4`, `80`."""
    return f"{mib / 1024:.1f}".removesuffix(".0") if mib < 10 * 1024 else f"{mib / 1024:.0f}"


def gpu_details(info: InfoAnswer, gpus: Sequence[Gpu]) -> str:
    """The page of `ginfo -l`: totals, then all details of each GPU. `info` is the answer of `--json`."""
    if not gpus:
        return NONE + (f"({info.trouble})\n" if info.trouble else "") + drained_note(info.reason)
    free = sum(gpu.available for gpu in info.gpus)
    lines = [f"GPUs: {len(gpus)} ({free} free)"]
    if info.driver:
        lines.append(f"Driver: {info.driver}")
    lines.append(f"Memory limits of shared jobs: {', '.join(info.limits)}")
    if info.is_isolated is not None:
        why = f"a job can open every GPU: {info.isolation_problem}"
        lines.append(f"Devices: {'a job can open only its own GPUs' if info.is_isolated else why}")
    for view in info.gpus:
        lines += ["", *_card(view)]
    return "\n".join(lines) + "\n" + drained_note(info.reason) + simulated_note(gpus)


def _card(view: GpuView) -> list[str]:
    lines = [f"GPU {view.index}: {view.model}", f"  UUID: {view.uuid}", f"  Memory: {_memory(view)}"]
    meters = [
        reading(view.utilisation, "%", "busy "),
        reading(view.temperature, " °C"),
        reading(view.power_w, " W"),
        reading(view.clock_mhz, " MHz"),
    ]
    if any(meters):
        lines.append("  Now: " + ", ".join(filter(None, meters)))
    if view.slowed:
        lines.append(f"  Slowed by: {', '.join(view.slowed)}")
    lines.append(f"  State: {_state(view)}")
    for job in view.holders:
        used = f", uses {spell_mib(job.used_mib)}" if job.used_mib is not None else ""
        limit = f" of {spell_mib(job.limit_mib)}" if job.limit_mib else ""
        whose = "Another job" if job.id is None else f"Job {job.id} ({job.name}) of {job.user}"
        lines.append(f"  {whose}{used}{limit}")
    for one in view.reserved:
        lines.append(f"  Reserved for {one.user} from {_local(one.start)} to {_local(one.end)}")
    for other in view.processes:
        used = spell_mib(other.memory_mib) if other.memory_mib is not None else "memory unknown"
        note = f" ({other.tolerated}: blocks nothing)" if other.tolerated else ""
        lines.append(f"  Process {other.pid} of {other.user}: {other.command}, {used}{note}")
    return lines


def _state(view: GpuView) -> str:
    """When a used GPU becomes free at the latest, or how long a free one has been idle, and its block."""
    if view.holders:
        until = f"free at about {_local(view.free_at)}" if view.free_at else "in use without a time limit"
        return until + (f", then {view.reason}" if view.reason else "")
    idle = f"idle for {'at least ' if view.idle_s_at_least else ''}{clock(view.idle_s or 0.0)}"
    return f"{view.reason}, {idle}" if view.reason else idle


def _local(time: str) -> str:
    return moment(datetime.fromisoformat(time).timestamp())


def _memory(view: GpuView) -> str:
    used = view.used_mib
    return (
        spell_mib(view.memory_mib)
        if used is None
        else f"{spell_mib(used)} of {spell_mib(view.memory_mib)} used"
    )


def spell_mib(mib: int) -> str:
    """Memory as `512 MiB` or `12.4 GiB`."""
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"


def reading(value: float | UnsetType | None, unit: str, before: str = "") -> str:
    return "" if value is None or isinstance(value, UnsetType) else f"{before}{value:.0f}{unit}"


def drained_note(reason: str | None) -> str:
    if reason is None:
        return ""
    text = f"(drained{': ' + reason if reason else ''}; gctl resume lets jobs start again)"
    return "".join(f"{line}\n" for line in wrap(text, 80))


def simulated_note(gpus: Sequence[Gpu]) -> str:
    return simulated_line(sum(gpu.simulated for gpu in gpus))


def simulated_line(count: int) -> str:
    """The note below a page about this many simulated GPUs."""
    if not count:
        return ""
    what = "simulated GPUs: they are" if count > 1 else "simulated GPU: it is"
    return f"({count} {what} allocated like real ones, without a device)\n"
