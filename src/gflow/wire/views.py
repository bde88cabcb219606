"""JSON views of jobs, GPUs, statistics and errors. A job has the same view in all answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import msgspec

from gflow.core.forecast.explain import Blocker
from gflow.core.model import ArrayProgress, AuditEntry, Block, Gpu, Job, JobProgress, Spec
from gflow.core.queries.usage_report import Prediction, Question, Statistics, Usage
from gflow.errors import GflowError
from gflow.options.table import JOB

encode = msgspec.json.Encoder().encode
# Field of a spec -> the option that fills it.
FIELDS = {option.field: option.name for option in JOB}


def job_view(job: Job, why: Blocker | None = None) -> dict[str, Any]:
    """The JSON view of a job (`answers.JobView`). `why`: the blocker of a waiting job."""
    spec = job.spec
    return {
        "id": job.number if job.task is None else job.label,
        "array_id": None if job.task is None and not job.is_array else job.number,
        "task_id": job.task,
        "name": job.name,
        "user": job.user,
        "project": spec.project or None,
        "state": job.state.value,
        "reason": str(why) if why else job.reason or None,
        "stopping": job.stopping is not None,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "attempt": job.attempt,
        "tasks": None if job.progress is None else _tasks(job.progress),
        "progress": None if job.headway is None else headway_view(job.headway),
        "gpus": spec.gpus,
        "gpu_ids": list(job.gpu_ids),
        "simulated": job.simulated,
        "priority": spec.priority,
        "submitted_at": rfc3339(job.submitted_at),
        "started_at": rfc3339(job.started_at),
        "finished_at": rfc3339(job.finished_at),
        "ran_s": None if job.ran_s is None else round(job.ran_s, 3),
        "time_limit_s": spec.time_limit_s or None,
        "stop_if_idle_s": spec.stop_if_idle_s or None,
        "preemptible": spec.preemptible,
        "cpu_time_s": job.cpu_ms / 1000 if job.peak_kib else None,
        "peak_memory_mib": round(job.peak_kib / 1024, 1) if job.peak_kib else None,
        "cpus": spec.shape.cpus,
        "memory_mib": spec.memory_mib or None,
        "gpu_memory_mib": spec.gpu_memory_mib or None,
        "gpu_memory_from": spec.gpu_memory_from or None,
        "gpu_memory_predicted_mib": spec.predicted_mib or None,
        "shared": spec.shared,
        "begin_at": rfc3339(spec.begin_at or None),
        "depends_on": [key_label(key) for key in spec.depends_on],
        "depends_any": [key_label(key) for key in spec.depends_any],
        "command": list(spec.command),
        "script": spec.script_path or None,
        "cwd": spec.cwd,
        "target": job.target,
        "target_id": (job.abroad.id if job.abroad else "") or None,
        "target_nodes": (job.abroad.nodes if job.abroad else "") or None,
        "nodes": spec.nodes,
        "partition": spec.partition or None,
        "group_id": spec.group if spec.group > 0 else None,
        "max_concurrent": spec.max_concurrent or None,
        "parameters": dict(spec.parameters),
        "command_template": list(spec.template) or None,
        "redone_from": key_label(spec.redone_from) if spec.redone_from else None,
        "max_retries": spec.max_retries,
        "retries": job.retries,
        "retry_on": list(spec.retry_on),
        "retry_at": rfc3339(job.retry_at or None),
        "comment": spec.comment or None,
        "venv": spec.venv or None,
        "conda_env": spec.conda_env or None,
        "notify": {"emails": list(spec.notify_emails), "events": list(spec.notify_on)},
        "asked": asked_view(spec),
    }


def asked_view(spec: Spec) -> dict[str, Any]:
    """The options that differ from their defaults, in the form that a submission accepts."""
    values = msgspec.to_builtins(spec)  # omits defaults
    asked = {
        FIELDS[field]: list(value) if type(value) is tuple else value
        for field, value in values.items()
        if field in FIELDS
    }
    for name in ("depends-on", "depends-on-any"):
        if name in asked:
            asked[name] = [key_label(key) for key in asked[name]]
    if asked.pop("signal", None) and spec.warning[0]:
        asked["signal"] = "{}@{}".format(*spec.warning)
    if "param" in asked:
        asked["param"] = {name: [value] for name, value in spec.parameters}
    return asked


def jobs_view(entries: Sequence[tuple[Job, Blocker | None]]) -> dict[str, Any]:
    """The answer about several jobs: their views and their number."""
    return {"jobs": [job_view(job, why) for job, why in entries], "total": len(entries)}


def dry_run_view(specs: Sequence[Spec], scripts: Sequence[str] = ()) -> dict[str, Any]:
    """The answer to a dry run: the jobs, which have no ids yet, and the batch scripts for Slurm."""
    jobs = dry_run_jobs(specs)
    return {"dry_run": True, "jobs": jobs, "total": len(jobs), "scripts": list(scripts)}


def dry_run_jobs(specs: Sequence[Spec]) -> list[dict[str, Any]]:
    """Views of jobs that are not submitted."""
    return [
        {
            "name": spec.name or None,
            "gpus": spec.gpus,
            "array": spec.array or None,
            "parameters": dict(spec.parameters),
            "command": list(spec.command),
            "script": spec.script_path or None,
            "depends_on": [key_label(key) for key in spec.depends_on],
        }
        for spec in specs
    ]


def _tasks(progress: ArrayProgress) -> dict[str, Any]:
    """Counts of the tasks of an array."""
    return {
        "pending": str(progress.pending),
        "waiting": len(progress.pending),
        "active": progress.active,
        "finished": progress.ok,
        "failed": progress.bad,
        "cancelled": progress.cancelled,
    }


def headway_view(headway: JobProgress) -> dict[str, Any]:
    """The progress that a job reported; null for what it did not report."""
    return {
        "step": headway.step,
        "steps": headway.steps or None,
        "percent": headway.percent,
        "epoch": headway.epoch if headway.epochs else None,
        "epochs": headway.epochs or None,
        "loss": headway.loss,
        "samples_per_s": headway.samples_per_s or None,
        "left_s": headway.left_s,
        "at": rfc3339(headway.at),
    }


def key_label(key: int) -> int | str:
    from gflow.core.ids import JobKey, label, number_of, task_of

    job = JobKey(key)
    return number_of(job) if task_of(job) is None else label(job)


def gpu_view(gpu: Gpu, holders: list[Job], why: Block | None = None) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "simulated": gpu.simulated,
        "available": not holders and why is None,
        "reason": None if why is None else str(why),
        "jobs": [key_label(job.key) for job in holders],
    }


def line_view(line: AuditEntry, name_of: Callable[[int], str]) -> dict[str, Any]:
    """One entry of a job's audit log."""
    return {
        "at": rfc3339(line.at),
        "event": line.what,
        "detail": line.detail,
        "by": None if line.uid is None else name_of(line.uid),
        "origin": line.origin,
    }


def statistics_view(question: Question, found: Statistics) -> dict[str, Any]:
    """Usage statistics. `simulated`: the GPUs are simulated, so GPU figures are not real."""
    top = [
        {
            "id": key_label(job.key),
            "name": job.name,
            "user": job.user,
            "state": job.state,
            "runtime_secs": round(job.run_s, 3),
            "gpus": job.gpus,
        }
        for job in found.top
    ]
    return {
        "user": question.user,
        "since": rfc3339(question.since or None),
        "simulated": question.is_simulated,
        "left_out_jobs": found.left_out,
        **usage_view(found.total),
        "peak_gpu_usage": found.peak_gpus,
        "top_jobs": top,
        "by_user": [{"user": name, **usage_view(usage)} for name, usage in found.by_user.items()],
        "by_project": [
            {"project": name or None, **usage_view(usage)} for name, usage in found.by_project.items()
        ],
    }


def predictions_view(question: Question, found: Sequence[Prediction]) -> dict[str, Any]:
    """Predictions of GPU memory, per job and summarised. A positive error means predicted too much."""
    jobs = [
        {
            "id": key_label(job.key),
            "name": job.name,
            "user": job.user,
            "state": job.state,
            "predicted_mib": job.predicted_mib,
            "measured_mib": job.measured_mib or None,
            "error_percent": round(100 * (job.predicted_mib / job.measured_mib - 1), 2)
            if job.measured_mib
            else None,
        }
        for job in found
    ]
    errors = sorted(abs(job.predicted_mib / job.measured_mib - 1) * 100 for job in found if job.measured_mib)
    return {
        "user": question.user,
        "since": rfc3339(question.since or None),
        "simulated": question.is_simulated,
        "predicted_jobs": len(found),
        "measured_jobs": len(errors),
        "median_error_percent": round(median(errors), 2) if errors else None,
        "p90_error_percent": round(errors[-(-9 * len(errors) // 10) - 1], 2) if errors else None,
        "worst_error_percent": round(errors[-1], 2) if errors else None,
        "too_low_jobs": sum(job.predicted_mib < job.measured_mib for job in found),
        "jobs": jobs,
    }


def usage_view(usage: Usage) -> dict[str, Any]:
    """Sums and averages of a user or project; null for the average of nothing."""
    ended = usage.completed + usage.failed + usage.timeout
    return {
        "total_jobs": usage.total,
        "completed_jobs": usage.completed,
        "failed_jobs": usage.failed,
        "cancelled_jobs": usage.cancelled,
        "timeout_jobs": usage.timeout,
        "running_jobs": usage.running,
        "queued_jobs": usage.queued,
        "avg_wait_secs": _mean(usage.waited_s, usage.started),
        "avg_runtime_secs": _mean(usage.run_s, usage.ran),
        "total_gpu_hours": round(usage.gpu_s / 3600, 3),
        "jobs_with_gpus": usage.gpu_jobs,
        "avg_gpus_per_job": _mean(usage.gpus, usage.gpu_jobs),
        # Cancelled jobs count neither as success nor as failure.
        "success_rate": _mean(usage.completed, ended),
    }


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 3) if count else None


def error_view(error: GflowError) -> dict[str, Any]:
    """The JSON output of a failed command with `--json`."""
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


def problem(error: GflowError) -> dict[str, Any]:
    """The problem document (RFC 9457) of an error, with its code and exit code."""
    return {
        "type": f"urn:gflow:{error.code}",
        "title": error.message,
        "status": error.http_status,
        "code": error.code,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }


def rfc3339(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
