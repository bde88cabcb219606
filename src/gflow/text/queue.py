"""The columns and sort orders of gqueue."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from gflow.core.forecast.explain import Blocker
from gflow.core.ids import JobKey
from gflow.core.model import LOCAL, Job, JobState, Moment
from gflow.core.scheduling.placement import gib
from gflow.errors import UsageError, did_you_mean, nearest, unknown
from gflow.job_states import LISTED
from gflow.metric_names import is_metric_name
from gflow.text.table import Sheet, clock

Entry = tuple[Job, Blocker | None]
# Default columns of a system daemon, which has jobs of several users.
SHARED = ("JOBID", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)")
DEFAULT = ("JOBID", "NAME", "ST", "TIME", "NODES", "NODELIST(REASON)")
# A metric by its name in the JSON, for one whose name alone reads as another column.
PREFIX = "metrics."
# Similarity from which a name is a misspelt column rather than a metric.
CUTOFF = 0.7
# Columns that need the GPU samples of the jobs.
SAMPLED = ("GPU%", "GPUMEM")
# GPU usage of a job: mean utilisation in percent (None: no reading), and peak memory of a GPU in MiB.
GpuUse = tuple[float | None, int]


def short_state(job: Job) -> str:
    """Short state of a job; `CG` while a running job is being stopped."""
    return "CG" if job.stopping else job.state.row.short


def display_id(job: Job) -> str:
    """`42`, `42_3`, or `42_[4-60%2]` for an array with waiting tasks."""
    if job.progress is None or not job.progress.pending:
        return job.label
    cap = f"%{job.spec.max_concurrent}" if job.spec.max_concurrent else ""
    return f"{job.label}_[{job.progress.pending}{cap}]"


def run_time(job: Job, now: Moment) -> float | None:
    """Run time of this attempt in seconds; None: it never started."""
    return None if job.is_array else job.run_s(now.boot)


# ---------------------------------------------------------------- columns
# Each gets a job, its blocker and the time. The default columns run for every line of every listing.


def _id(job: Job, why: Blocker | None, now: Moment) -> str:
    return display_id(job)


def _name(job: Job, why: Blocker | None, now: Moment) -> str:
    return job.name


def _short_state(job: Job, why: Blocker | None, now: Moment) -> str:
    return short_state(job)


def _target(job: Job) -> str:
    """The target; both names for a job that may start here or on a cluster."""
    if job.overflows_at is not None:
        return f"{LOCAL}/{job.spec.overflow}"
    is_both = job.state is JobState.QUEUED and job.spec.races_here
    return f"{LOCAL}/{job.spec.on}" if is_both else job.target


def _time(job: Job, why: Blocker | None, now: Moment) -> str:
    seconds = run_time(job, now)
    return "-" if seconds is None else clock(seconds)


def _gpus(job: Job, why: Blocker | None, now: Moment) -> str:
    return str(job.spec.gpus)


def _nodes(job: Job, why: Blocker | None, now: Moment) -> str:
    """The nodes of a job on a cluster; the GPUs of one on this machine, which is one node."""
    if job.target == LOCAL:
        return str(job.spec.gpus)
    return str(count_hosts(job.remote.nodes) if job.remote and job.remote.nodes else job.spec.nodes)


def count_hosts(text: str) -> int:
    """The number of hosts in Slurm's notation: `node[1-3,7],login` has five."""
    count = 0
    for ranges in re.findall(r"[^,\[]+(?:\[([^\]]*)\][^,]*)?", text):
        for part in ranges.split(","):
            first, dash, last = part.partition("-")
            count += int(last) - int(first) + 1 if dash and first.isdecimal() and last.isdecimal() else 1
    return count


def _nodes_or_reason(job: Job, why: Blocker | None, now: Moment) -> str:
    if job.state is JobState.RUNNING or ((job.gpu_ids or job.remote) and job.state is JobState.FINISHED):
        there = job.remote.nodes if job.remote else ""
        is_away = job.remote is not None and job.state is JobState.RUNNING and not job.stopping
        note = why.code if why else str(job.reason) if is_away else ""
        return (_gpu_ids(job) or there or "-") + (f" ({note})" if note else "")
    reason = str(why or job.reason)
    return f"({reason})" if reason else "-"


def _progress(job: Job, why: Blocker | None, now: Moment) -> str:
    report = job.progress_report
    if report is None:
        return "-"
    return f"step {report.step}" if report.percent is None else f"{report.percent}%"


def _eta(job: Job, why: Blocker | None, now: Moment) -> str:
    seconds = job.left_s(now.wall)
    return "-" if seconds is None else clock(seconds)


def metric_value(job: Job, name: str) -> float | None:
    """The value of a metric, or of `loss`, that the job reported last; None: it did not report it."""
    return job.progress_report.metric(name) if job.progress_report is not None else None


def _metric(name: str) -> Callable[[Job, Blocker | None, Moment], str]:
    """The column of a metric."""

    def cell(job: Job, why: Blocker | None, now: Moment) -> str:
        value = metric_value(job, name)
        return "-" if value is None else f"{value:.4g}"

    return cell


def _rate(job: Job, why: Blocker | None, now: Moment) -> str:
    known = (
        job.progress_report is not None
        and job.progress_report.samples_per_s
        and job.state is JobState.RUNNING
    )
    return f"{job.progress_report.samples_per_s:.3g}/s" if known and job.progress_report else "-"


def _gpu_ids(job: Job) -> str:
    return ",".join(map(str, job.gpu_ids))


def spell_parameters(job: Job) -> str:
    """The parameters of a job of a sweep: `lr=0.1 seed=2`."""
    return " ".join(f"{name}={value}" for name, value in job.spec.parameters)


def spell_command(job: Job, command: Sequence[str]) -> str:
    """A command of a job as a shell command line, with its script."""
    return shlex.join((*filter(None, [job.spec.script_path]), *command)) or "-"


def _exit(job: Job) -> str:
    if job.signal:
        return f"signal {job.signal}"
    return "-" if job.exit_code is None else str(job.exit_code)


def when(seconds: float | None) -> str:
    """A time as one word, so that programs can split a row into its columns."""
    return "-" if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def _gpu_percent(use: GpuUse | None) -> str:
    return "-" if use is None or use[0] is None else f"{use[0]:.0f}%"


def _gpu_memory(use: GpuUse | None) -> str:
    return "-" if use is None or not use[1] else gib(use[1])


def _start(job: Job, expected: float | None) -> str:
    """The start time; for a waiting job the ETA, marked with `~`."""
    waits = job.state is JobState.QUEUED and expected is not None
    return f"~{when(expected)}" if waits else when(job.started_at)


COLUMNS: dict[str, Callable[[Job, Blocker | None, Moment], str]] = {
    "JOBID": _id,
    "NAME": _name,
    "ST": _short_state,
    "STATE": lambda job, why, now: job.state.value,
    "TIME": _time,
    "TIMELIMIT": lambda job, why, now: clock(job.spec.time_limit_s) if job.spec.time_limit_s else "UNLIMITED",
    "NODES": _nodes,
    "NODELIST(REASON)": _nodes_or_reason,
    "REASON": lambda job, why, now: str(why or job.reason) or "-",
    "GPUS": _gpus,
    "GPUIDS": lambda job, why, now: _gpu_ids(job) or "-",
    "CPUS": lambda job, why, now: str(job.spec.shape.cpus),
    "MEMORY": lambda job, why, now: gib(job.spec.memory_mib) if job.spec.memory_mib else "-",
    "USER": lambda job, why, now: job.user,
    "PROJECT": lambda job, why, now: job.spec.project or "-",
    "PRIORITY": lambda job, why, now: str(job.spec.priority),
    "SUBMIT": lambda job, why, now: when(job.submitted_at),
    "START": lambda job, why, now: when(job.started_at),
    "END": lambda job, why, now: when(job.finished_at),
    "EXIT": lambda job, why, now: _exit(job),
    "ATTEMPT": lambda job, why, now: str(job.attempt),
    "PROGRESS": _progress,
    "ETA": _eta,
    "LOSS": _metric("loss"),
    "RATE": _rate,
    "GROUP": lambda job, why, now: f"g{job.spec.group}" if job.spec.group > 0 else "-",
    "PARAMS": lambda job, why, now: spell_parameters(job) or "-",
    "MAXRSS": lambda job, why, now: gib(-(-job.peak_kib // 1024)) if job.peak_kib else "-",
    "GPU%": lambda job, why, now: "-",
    "GPUMEM": lambda job, why, now: "-",
    "TARGET": lambda job, why, now: _target(job),
    "COMMAND": lambda job, why, now: spell_command(job, job.spec.command),
    "WORKDIR": lambda job, why, now: job.spec.cwd,
}
# Alternative names of columns.
ALIASES = {
    "NODELIST": "NODELIST(REASON)", "ID": "JOBID", "STATUS": "STATE", "TIME_LIMIT": "TIMELIMIT",
    "GPU_IDS": "GPUIDS", "MIN_MEMORY": "MEMORY", "PRIO": "PRIORITY", "SUBMIT_TIME": "SUBMIT",
    "START_TIME": "START", "END_TIME": "END", "EXIT_CODE": "EXIT", "WORK_DIR": "WORKDIR", "CWD": "WORKDIR",
}  # fmt: skip
# Columns that may be truncated to fit the terminal, in this order: the reason is truncated last.
LONG = (("NAME", "PARAMS", "COMMAND", "WORKDIR", "USER", "PROJECT"), ("NODELIST(REASON)", "REASON"))
STYLES = {"CG": "33"}
STYLES |= {name: state.row.style for state in JobState for name in (state.row.short, state.value)}


def columns_of(text: str, usual: tuple[str, ...] = DEFAULT) -> tuple[str, ...]:
    """The columns named by `-f TEXT`; `usual` if it is empty."""
    if not text:
        return usual
    return tuple(_column_of(name.strip()) for name in text.split(","))


def _column_of(text: str) -> str:
    """The column named `text`, in any case, or else the metric of that name."""
    name = text.upper()
    if name in COLUMNS or name in ALIASES:
        return ALIASES.get(name, name)
    if metric := metric_of(text, (*COLUMNS, *ALIASES)):
        return metric
    error = unknown("column", name, COLUMNS)
    if is_metric_name(text) and "did you mean" not in error.hint:
        error.hint += f"; {PREFIX}{text} is a metric"
    raise error


def metric_of(text: str, known: Iterable[str]) -> str:
    """The metric that `text` names; empty: it is not a name, or looks like a misspelt one of `known`.

    Jobs may report a metric later, so any name is accepted that has small letters and is not near a known
    name, as `nmae` is. `val_loss`, with a separator, and `metrics.NAME` are always accepted.
    """
    name = text.removeprefix(PREFIX)
    if not is_metric_name(name):
        return ""
    is_plain = name == text and name.isalnum()
    return "" if is_plain and (name.isupper() or nearest(name, known, CUTOFF)) else name


def with_progress(names: tuple[str, ...], *, has_loss: bool) -> tuple[str, ...]:
    """These columns, with the progress of jobs before the last."""
    return (*names[:-1], "PROGRESS", "ETA", *(["LOSS"] if has_loss else []), names[-1])


def row_maker(
    names: Sequence[str],
    now: Moment,
    starts: Mapping[JobKey, float] | None = None,
    gpu_use: Mapping[JobKey, GpuUse] | None = None,
) -> Callable[[Entry], list[str]]:
    """A function that makes the cells of an entry. `starts`: ETAs of waiting jobs, in seconds since 1970."""
    columns = dict(COLUMNS)
    if starts:
        columns["START"] = lambda job, why, now: _start(job, starts.get(job.key))
    if gpu_use:
        columns["GPU%"] = lambda job, why, now: _gpu_percent(gpu_use.get(job.key))
        columns["GPUMEM"] = lambda job, why, now: _gpu_memory(gpu_use.get(job.key))
    cells = [columns.get(name) or _metric(name) for name in names]

    def row(entry: Entry) -> list[str]:
        job, why = entry
        return [cell(job, why, now) for cell in cells]

    return row


def queue_sheet(names: Sequence[str], *, is_coloured: bool, widths: list[int] | None = None) -> Sheet:
    styles = {index: STYLES for index, name in enumerate(names) if name in ("ST", "STATE")}
    return Sheet(names, styles if is_coloured else None, widths)


def totals_line(running: int, waiting: int, gpus: int, gpus_used: int) -> str:
    """The last line of a listing on a terminal."""
    used = f"; {gpus_used} of {gpus} GPU{'s' if gpus > 1 else ''} in use" if gpus else ""
    return f"{running} running, {waiting} waiting{used}\n"


def nothing_active(ended_today: int, failed_today: int = 0) -> str:
    """What an empty queue says on a terminal."""
    ended = f"{ended_today} ended today" if ended_today else "jobs that have ended"
    ended += f", {failed_today} failed" if failed_today else ""
    return f"no active jobs; {ended}: gqueue -a\n"


def cuttable(names: Sequence[str]) -> list[list[int]]:
    return [[index for index, name in enumerate(names) if name in group] for group in LONG]


# ---------------------------------------------------------------- order

# Larger than any group: jobs without one come last.
_NO_GROUP = 1 << 62
_RANK = {state: rank for rank, state in enumerate(LISTED)}
# Sort keys; ties are ordered by id.
SORTS: dict[str, Callable[[Job, Moment], Any]] = {
    "id": lambda job, now: 0,
    "state": lambda job, now: _RANK[job.state],
    "time": lambda job, now: -(run_time(job, now) or 0.0),
    "name": lambda job, now: job.name,
    "gpus": lambda job, now: -job.spec.gpus,
    "priority": lambda job, now: -job.spec.priority,
    "group": lambda job, now: job.spec.group if job.spec.group > 0 else _NO_GROUP,
    "params": lambda job, now: _parameters(job),
}
# The orders of any listing. Others are metrics and parameters of the listed jobs.
ORDERS = (*SORTS, "loss")


def _parameters(job: Job) -> tuple[tuple[str, bool, float, str], ...]:
    """Sort key of parameters: by name, then numbers by their value before texts."""
    return tuple((name, *_number_or_text(value)) for name, value in job.spec.parameters)


def _number_or_text(value: str) -> tuple[bool, float, str]:
    try:
        number = float(value)
    except ValueError:
        return True, 0.0, value
    return (False, number, value) if isfinite(number) else (True, 0.0, value)


def sort_of(text: str) -> tuple[str, bool]:
    """Parse a sort key: `time`, or `-time` for the reverse order; or a metric, as reported."""
    given = text.removeprefix("-")
    name = given.lower() if given.lower() in ORDERS else metric_of(given, SORTS)
    if not name:
        raise unknown("order", given, ORDERS)
    return name, text.startswith("-")


def sort_key(
    name: str,
    now: Moment,
    *,
    is_reversed: bool = False,
    sees_metrics: Callable[[Job], bool] = lambda job: True,
) -> Callable[[Entry], Any]:
    """The sort key of a listing: an order, else a metric or a parameter.

    Jobs without it, or whose details are hidden, come last.
    """
    rank = SORTS.get(name)
    if name == "params":
        return lambda entry: (_parameters(entry[0]) if sees_metrics(entry[0]) else (), entry[0].key)
    if rank is not None:
        return lambda entry: (rank(entry[0], now), entry[0].key)

    def by_value(entry: Entry) -> tuple[bool, tuple[bool, float, str], int]:
        job = entry[0]
        value = _named_value(job, name) if sees_metrics(job) else None
        return (value is None) != is_reversed, value or (False, 0.0, ""), job.key

    return by_value


def value_names(job: Job) -> set[str]:
    """The names of the parameters of a job, and of the metrics that it reported last."""
    reported = job.progress_report.names if job.progress_report is not None else set[str]()
    return {name for name, _ in job.spec.parameters} | reported


def no_such_value(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an order or a metric that none of the shown jobs has."""
    names = sorted(known)
    hint = did_you_mean(name, names, f"choose from: {', '.join(names)}")
    return UsageError(f"none of these jobs has the {kind} {name!a:.60}", hint=hint)


def _named_value(job: Job, name: str) -> tuple[bool, float, str] | None:
    """Sort key of the metric of this name, or else of the parameter; None: the job has neither."""
    number = metric_value(job, name)
    if number is not None:
        return False, number, ""
    return next((_number_or_text(text) for own, text in job.spec.parameters if own == name), None)
