"""Answers about jobs. A job has the same view in all answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gflow.core.forecast.explain import Blocker
from gflow.core.model import PARENT_FIELDS, ArrayProgress, Job, JobProgress, Spec
from gflow.job_states import JobState
from gflow.wire.encoding import JobId, key_label, rfc3339
from gflow.wire.shell_words import FIELDS

if TYPE_CHECKING:
    State = str
else:
    State = Literal[tuple(state.value for state in JobState)]


class ReportedProgress(msgspec.Struct, kw_only=True):
    """How far a job says it is; null what it did not say. `metrics`: further values, by name."""

    step: int
    steps: int | None
    percent: int | None
    epoch: int | None
    epochs: int | None
    loss: float | None
    samples_per_s: float | None
    left_s: float | None
    metrics: dict[str, float]
    at: str


class Tasks(msgspec.Struct, kw_only=True):
    """How far an array is. `pending`: those that have not started, as in `4-60`."""

    pending: str
    waiting: int
    active: int
    finished: int
    failed: int
    cancelled: int


class Notify(msgspec.Struct, kw_only=True):
    """Whom a job's owner wants to be told, and of what."""

    emails: tuple[str, ...]
    events: tuple[str, ...]


class JobView(msgspec.Struct, kw_only=True, gc=False):
    """A job. Times are RFC 3339, in UTC; `asked` has every option that is not the default."""

    id: JobId
    array_id: int | None
    task_id: int | None
    name: str
    user: str
    project: str | None
    state: State
    reason: str | None
    stopping: bool
    exit_code: int | None
    signal: int | None
    attempt: int
    tasks: Tasks | None
    progress: ReportedProgress | None
    gpus: int
    gpu_ids: tuple[int, ...]
    simulated: bool
    priority: int
    submitted_at: str
    started_at: str | None
    finished_at: str | None
    ran_s: float | None
    time_limit_s: int | None
    stop_if_idle_s: int | None
    preemptible: bool
    cpu_time_s: float | None
    peak_memory_mib: float | None
    cpus: int
    memory_mib: int | None
    gpu_memory_mib: int | None
    gpu_memory_from: str | None
    gpu_memory_predicted_mib: int | None
    shared: bool
    begin_at: str | None
    depends_on: list[JobId]
    depends_any: list[JobId]
    depends_end: list[JobId]
    depends_failure: list[JobId]
    depends_start: list[JobId]
    singleton: bool
    # The earlier jobs of its name that a singleton waits for.
    depends_earlier: list[JobId]
    command: tuple[str, ...]
    script: str | None
    cwd: str
    target: str
    # For jobs on clusters: the id on the cluster, and the nodes.
    target_id: str | None
    target_nodes: str | None
    nodes: int
    # GPUs on all its nodes; `gpus` is the number on each.
    total_gpus: int
    partition: str | None
    group_id: int | None
    max_concurrent: int | None
    parameters: dict[str, str]
    command_template: tuple[str, ...] | None
    name_template: str | None
    redone_from: JobId | None
    max_retries: int
    retries: int
    retry_on: tuple[str, ...]
    retry_at: str | None
    comment: str | None
    venv: str | None
    conda_env: str | None
    notify: Notify
    asked: dict[str, Any]


class JobsAnswer(msgspec.Struct, kw_only=True):
    """Jobs, and how many there are; more than are listed where a limit left some out."""

    jobs: list[JobView]
    total: int


class PlannedJob(msgspec.Struct, kw_only=True):
    """A job that would be submitted."""

    name: str | None
    gpus: int
    array: str | None
    parameters: dict[str, str]
    command: tuple[str, ...]
    script: str | None
    depends_on: list[JobId]


class DryRunAnswer(msgspec.Struct, kw_only=True):
    """What would be submitted, and what sbatch would get for those on clusters. Nothing was."""

    dry_run: Literal[True]
    jobs: list[PlannedJob]
    total: int
    scripts: list[str]
    # When the first job would start, if the query asks for it; null: unknown.
    starts_at: str | None = None


Verdict = Literal["ok", "invalid", "blocked"]


class JudgedJob(msgspec.Struct, kw_only=True):
    """What a cancel would do to a job: `blocked` ones wait for `parents`, `invalid` ones are over."""

    id: JobId
    state: State
    verdict: Verdict
    parents: list[JobId]
    name: str = ""
    user: str = ""


class DryCancelAnswer(msgspec.Struct, kw_only=True):
    """What would be cancelled. Nothing was."""

    dry_run: Literal[True]
    jobs: list[JudgedJob]
    total: int


def job_view(job: Job, why: Blocker | None = None) -> JobView:
    """The view of a job. `why`: the blocker of a waiting job."""
    spec, remote = job.spec, job.remote
    return JobView(
        id=job.number if job.task is None else job.label,
        array_id=None if job.task is None and not job.is_array else job.number,
        task_id=job.task,
        name=job.name, user=job.user, project=spec.project or None,
        state=job.state.value,
        reason=str(why or job.reason) or None,
        stopping=job.stopping is not None,
        exit_code=job.exit_code, signal=job.signal, attempt=job.attempt,
        tasks=None if job.progress is None else _tasks(job.progress),
        progress=None if job.progress_report is None else progress_view(job.progress_report),
        gpus=spec.gpus, gpu_ids=job.gpu_ids, simulated=job.simulated, priority=spec.priority,
        submitted_at=rfc3339(job.submitted_at),
        started_at=rfc3339(job.started_at),
        finished_at=rfc3339(job.finished_at),
        ran_s=None if job.ran_s is None else round(job.ran_s, 3),
        time_limit_s=spec.time_limit_s or None, stop_if_idle_s=spec.stop_if_idle_s or None,
        preemptible=spec.preemptible,
        cpu_time_s=job.cpu_ms / 1000 if job.peak_kib else None,
        peak_memory_mib=round(job.peak_kib / 1024, 1) if job.peak_kib else None,
        cpus=spec.shape.cpus, memory_mib=spec.memory_mib or None,
        gpu_memory_mib=spec.gpu_memory_mib or None, gpu_memory_from=spec.gpu_memory_from or None,
        gpu_memory_predicted_mib=spec.predicted_mib or None,
        shared=spec.shared,
        begin_at=rfc3339(spec.begin_at or None),
        depends_on=[key_label(key) for key in spec.depends_on],
        depends_any=[key_label(key) for key in spec.depends_any],
        depends_end=[key_label(key) for key in spec.depends_end],
        depends_failure=[key_label(key) for key in spec.depends_failure],
        depends_start=[key_label(key) for key in spec.depends_start],
        singleton=spec.singleton,
        depends_earlier=[key_label(key) for key in spec.depends_earlier],
        command=spec.command, script=spec.script_path or None, cwd=spec.cwd,
        target=job.target,
        target_id=(remote.id if remote else "") or None,
        target_nodes=(remote.nodes if remote else "") or None,
        nodes=spec.nodes, total_gpus=spec.nodes * spec.gpus, partition=spec.partition or None,
        group_id=spec.group if spec.group > 0 else None, max_concurrent=spec.max_concurrent or None,
        parameters=dict(spec.parameters), command_template=spec.template or None,
        name_template=spec.name_template or None,
        redone_from=key_label(spec.redone_from) if spec.redone_from else None,
        max_retries=spec.max_retries, retries=job.retries, retry_on=spec.retry_on,
        retry_at=rfc3339(job.retry_at or None),
        comment=spec.comment or None, venv=spec.venv or None, conda_env=spec.conda_env or None,
        notify=Notify(emails=spec.notify_emails, events=spec.notify_on),
        asked=asked_view(spec),
    )  # fmt: skip


def asked_view(spec: Spec) -> dict[str, Any]:
    """The options that differ from their defaults, in the form that a submission accepts."""
    values = msgspec.to_builtins(spec)  # omits defaults
    asked = {
        FIELDS[field]: list(value) if type(value) is tuple else value
        for field, value in values.items()
        if field in FIELDS
    }
    for name in map(FIELDS.__getitem__, PARENT_FIELDS):
        if name in asked:
            asked[name] = [key_label(key) for key in asked[name]]
    if asked.pop("signal", None) and spec.warning[0]:
        number, before_s = spec.warning
        asked["signal"] = f"{'B:' * (number < 0)}{abs(number)}@{before_s}"
    if "param" in asked:
        asked["param"] = {name: [value] for name, value in spec.parameters}
    return asked


def _tasks(progress: ArrayProgress) -> Tasks:
    return Tasks(
        pending=str(progress.pending),
        waiting=len(progress.pending),
        active=progress.active,
        finished=progress.ok,
        failed=progress.bad,
        cancelled=progress.cancelled,
    )


def progress_view(progress: JobProgress) -> ReportedProgress:
    """The progress that a job reported; null for what it did not report."""
    return ReportedProgress(
        step=progress.step,
        steps=progress.steps or None,
        percent=progress.percent,
        epoch=progress.epoch if progress.epochs else None,
        epochs=progress.epochs or None,
        loss=progress.loss,
        samples_per_s=progress.samples_per_s or None,
        left_s=progress.left_s,
        metrics=progress.metrics,
        at=rfc3339(progress.at),
    )


def jobs_view(entries: Sequence[tuple[Job, Blocker | None]]) -> JobsAnswer:
    """The answer about several jobs: their views and their number."""
    return JobsAnswer(jobs=[job_view(job, why) for job, why in entries], total=len(entries))


def dry_run_view(specs: Sequence[Spec], scripts: Sequence[str] = ()) -> DryRunAnswer:
    """The answer to a dry run: the jobs, which have no ids yet, and the batch scripts for Slurm."""
    return DryRunAnswer(
        dry_run=True, jobs=[planned_job(spec) for spec in specs], total=len(specs), scripts=list(scripts)
    )


def planned_job(spec: Spec) -> PlannedJob:
    """The view of a job that is not submitted."""
    return PlannedJob(
        name=spec.name or None,
        gpus=spec.gpus,
        array=spec.array or None,
        parameters=dict(spec.parameters),
        command=spec.command,
        script=spec.script_path or None,
        depends_on=[key_label(key) for key in spec.depends_on],
    )
