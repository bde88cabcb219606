"""The columns of gqueue: what each shows for one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gflow.core.explain import Why
from gflow.core.model import SHORT, Job, JobState
from gflow.core.place import gib
from gflow.errors import UsageError
from gflow.text.durations import clock
from gflow.text.table import table

Entry = tuple[Job, Why | None]
DEFAULT = ("JOBID", "NAME", "ST", "TIME", "NODES", "NODELIST(REASON)")


def short_state(job: Job) -> str:
    """`CG` while a running job is being stopped."""
    return "CG" if job.stopping else SHORT[job.state]


def shown_id(job: Job) -> str:
    """`42`, `42_3`, or `42_[4-60%2]` for the tasks that still wait in an array."""
    if job.progress is None or not job.progress.pending:
        return job.label
    cap = f"%{job.spec.max_concurrent}" if job.spec.max_concurrent else ""
    return f"{job.label}_[{job.progress.pending}{cap}]"


def _time(job: Job, now: float) -> str:
    if job.started_at is None or job.is_array:
        return "-"
    return clock((job.finished_at or now) - job.started_at)


def _gpu_ids(job: Job) -> str:
    return ",".join(map(str, job.gpu_ids))


def _reason(job: Job, why: Why | None) -> str:
    return str(why) if why else job.reason


def _nodes_or_reason(job: Job, why: Why | None) -> str:
    if job.state is JobState.RUNNING or (job.gpu_ids and job.state is JobState.FINISHED):
        return _gpu_ids(job) or "-"
    reason = _reason(job, why)
    return f"({reason})" if reason else "-"


COLUMNS: dict[str, Callable[[Job, Why | None, float], str]] = {
    "JOBID": lambda job, why, now: shown_id(job),
    "NAME": lambda job, why, now: job.name,
    "ST": lambda job, why, now: short_state(job),
    "STATE": lambda job, why, now: job.state.value,
    "TIME": lambda job, why, now: _time(job, now),
    "TIMELIMIT": lambda job, why, now: clock(job.spec.time_limit_s) if job.spec.time_limit_s else "UNLIMITED",
    "NODES": lambda job, why, now: str(job.spec.gpus),
    "NODELIST(REASON)": lambda job, why, now: _nodes_or_reason(job, why),
    "NODELIST": lambda job, why, now: _gpu_ids(job) or "-",
    "REASON": lambda job, why, now: _reason(job, why) or "-",
    "USER": lambda job, why, now: job.user,
    "PROJECT": lambda job, why, now: job.spec.project or "-",
    "MEMORY": lambda job, why, now: gib(job.spec.memory_mib) if job.spec.memory_mib else "-",
    "PRIORITY": lambda job, why, now: str(job.spec.priority),
    "EXIT": lambda job, why, now: "-" if job.exit_code is None else str(job.exit_code),
}


def columns_of(text: str) -> tuple[str, ...]:
    """The columns that `-f TEXT` names."""
    names = tuple(name.strip().upper() for name in text.split(",")) if text else DEFAULT
    for name in names:
        if name not in COLUMNS:
            raise UsageError(f"unknown column {name!r}", hint="columns: " + ", ".join(COLUMNS))
    return names


def queue_table(entries: Iterable[Entry], names: Sequence[str], now: float) -> str:
    cells = [COLUMNS[name] for name in names]
    return table(names, [[cell(job, why, now) for cell in cells] for job, why in entries])
