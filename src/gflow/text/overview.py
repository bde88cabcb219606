"""The page of `gflow status`: one screen of 80 columns and 24 lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from gflow.errors import clean
from gflow.text.gpus import SHORTEST_NAME, bare_gib, gpu_notes, reading, short_time
from gflow.text.table import Sheet, clock, cut, near_moment
from gflow.wire.answers.gpus import GpuView
from gflow.wire.answers.jobs import JobView
from gflow.wire.answers.overview import Attention, OverviewAnswer, WaitingJob
from gflow.wire.encoding import rfc3339

# Most lines of each part: with five headings and a prompt the page fills a screen.
GPU_LINES, JOB_LINES, ATTENTION_LINES = 8, 5, 5
USUAL_WIDTH = 80
INDENT = 2


def overview_page(data: OverviewAnswer, now: float, columns: int = 0) -> str:
    """The page. `now`: seconds since 1970. `columns`: width of the terminal; 0: unknown."""
    columns = columns or USUAL_WIDTH
    jobs = [_running_row(job, now) for job in data.my_running_jobs]
    jobs += [_waiting_row(job, now) for job in data.my_waiting_jobs]
    counts = [1] * len(data.my_running_jobs) + [job.tasks for job in data.my_waiting_jobs]
    held = f" ({data.held} held)" if data.held else ""
    lines = [
        _head("gflowd", _daemon(data, now)),
        _head("GPUs", _gpu_totals(data)),
        *_gpu_lines(data.gpus, now, columns),
        _head("Queue", f"{data.running} running, {data.waiting} waiting{held}"),
        _head("Yours", f"{data.my_running} running, {data.my_waiting} waiting ({clean(data.user)})"),
        *_capped(jobs, JOB_LINES, data.my_running + data.my_waiting, "gqueue --me", columns, counts),
        *_attention(data.attention, columns),
    ]
    return "".join(cut(line, columns) + "\n" for line in lines)


def _head(label: str, text: str) -> str:
    return f"{label:<8}{text}"


def _part(count: int, what: str) -> str:
    return f", {count} {what}" if count else ""


def _capped(
    rows: Sequence[Sequence[str]],
    most: int,
    total: int,
    command: str,
    columns: int,
    counts: Sequence[int] = (),
) -> list[str]:
    """At most so many lines; if there is more in total, the last line says where it is.

    `counts`: how many of the total each row is; without it each is one.
    """
    counts = counts or [1] * len(rows)
    if (total <= sum(counts) and len(rows) <= most) or not rows:
        return _rows(rows, columns)
    shown = rows[: most - 1]
    return [*_rows(shown, columns), f"  ({total - sum(counts[: len(shown)])} more: {command})"]


def _rows(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Rows as aligned, indented lines without empty columns. The second and the last are cut to fit."""
    if not rows:
        return []
    filled = [at for at in range(len(rows[0])) if any(row[at] for row in rows)]
    sheet = Sheet([""] * len(filled))
    for row in rows:
        sheet.add([row[at] for at in filled])
    room = columns - INDENT
    lines = list(sheet.lines(room, [[1], [len(filled) - 1]]))[1:]
    return [" " * INDENT + line.rstrip("\n") for line in lines]


# ---------------------------------------------------------------- daemon and GPUs


def _daemon(data: OverviewAnswer, now: float) -> str:
    kind = "for all users" if data.system else "your own"
    since = near_moment(datetime.fromisoformat(data.started_at).timestamp(), now)
    targets = f"; targets: {', '.join(data.targets)}" if len(data.targets) > 1 else ""
    return f"{data.version}, {kind}, since {since} ({clock(data.uptime_secs)}){targets}"


def _gpu_totals(data: OverviewAnswer) -> str:
    counts = data.gpu_counts
    if not counts.total:
        return "none: jobs without --gpus run here as usual"
    models = dict.fromkeys(view.model.removeprefix("NVIDIA ") for view in data.gpus)
    return (
        f"{counts.total} ({clean(', '.join(models))}): {counts.free} free, {counts.used} in use"
        + _part(counts.reserved, "reserved")
        + _part(counts.restricted, "restricted")
        + _part(counts.blocked, "blocked")
    )


def _gpu_lines(gpus: Sequence[GpuView], now: float, columns: int) -> list[str]:
    """A line for the GPUs of each job, each reason and each reservation; free GPUs share one."""
    at = datetime.fromtimestamp(now, UTC)
    groups: dict[tuple[str, ...], list[GpuView]] = {}
    for view in gpus:
        users = ",".join(dict.fromkeys(job.user for job in view.holders))
        until = f"until {short_time(view.free_at, at)}" if view.free_at else ""
        groups.setdefault((users, until, "; ".join(gpu_notes(view, at, SHORTEST_NAME))), []).append(view)
    rows = [
        [_indices(views), users, _use(views), until, notes] for (users, until, notes), views in groups.items()
    ]
    return _capped(rows, GPU_LINES, len(rows), "ginfo", columns)


def _indices(views: Sequence[GpuView]) -> str:
    """Indices as `0-3,7`."""
    parts: list[list[int]] = []
    for index in sorted(view.index for view in views):
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def _use(views: Sequence[GpuView]) -> str:
    """Mean utilisation and memory in use: `62% 40/80 GiB`; empty without readings."""
    busy = [view.utilisation for view in views if isinstance(view.utilisation, int)]
    used = [view.used_mib for view in views if view.used_mib is not None]
    if not used:
        return ""
    percent = reading(sum(busy) / len(busy), "%") if busy else "-"
    return f"{percent} {bare_gib(sum(used))}/{bare_gib(sum(view.memory_mib for view in views))} GiB"


# ---------------------------------------------------------------- jobs


def _running_row(job: JobView, now: float) -> list[str]:
    began = datetime.fromisoformat(job.started_at).timestamp() if job.started_at else now
    gpus = f"GPU {','.join(map(str, job.gpu_ids))}" if job.gpu_ids else "no GPU"
    where = gpus if job.target == "local" else job.target
    return [str(job.id), job.name, f"runs {clock(now - began)}", f"{where}{_progress(job, now)}"]


def _progress(job: JobView, now: float) -> str:
    report = job.progress
    if report is None:
        return ""
    done = f"step {report.step}" if report.percent is None else f"{report.percent}%"
    loss = "" if report.loss is None else f", loss {report.loss:.4g}"
    if report.left_s is None:
        return f", {done}{loss}"
    left = max(0.0, report.left_s - (now - datetime.fromisoformat(report.at).timestamp()))
    return f", {done}, {clock(left)} left{loss}"


def _waiting_row(job: WaitingJob, now: float) -> list[str]:
    at = max(job.expected_start, rfc3339(now)) if job.expected_start else ""
    start = f"starts about {short_time(at, datetime.fromtimestamp(now, UTC))}" if at else "waits"
    tasks = f"{job.tasks} tasks: " if job.tasks > 1 else ""
    return [str(job.id), job.name, start, f"{tasks}{job.reason or ''}"]


# ---------------------------------------------------------------- attention


def _attention(found: Sequence[Attention], columns: int) -> list[str]:
    if not found:
        return ["Nothing needs attention."]
    rows = [[_attention_line(one, columns - INDENT)] for one in found]
    return [
        "Needs attention",
        *_capped(rows, ATTENTION_LINES, len(found), "gflow status --json", columns),
    ]


def _attention_line(one: Attention, room: int) -> str:
    """The sentence, cut if it does not fit, and its hint."""
    hint = f"  → {one.hint}"
    return cut(clean(one.text), max(20, room - len(hint))) + hint
