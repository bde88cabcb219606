"""Answers about usage statistics, and about predictions of GPU memory."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, TypeVar

import msgspec

from gflow.core.queries.usage_report import Prediction, Question, Statistics, Usage
from gflow.wire.answers.jobs import State
from gflow.wire.encoding import JobId, key_label, rfc3339


class Figures(msgspec.Struct, kw_only=True):
    """Sums and averages; null where there is nothing to take the average of."""

    total_jobs: int
    completed_jobs: int
    failed_jobs: int
    cancelled_jobs: int
    timeout_jobs: int
    running_jobs: int
    queued_jobs: int
    avg_wait_secs: float | None
    avg_runtime_secs: float | None
    total_gpu_hours: float
    jobs_with_gpus: int
    avg_gpus_per_job: float | None
    success_rate: float | None


class TopJob(msgspec.Struct, kw_only=True):
    """One of the longest jobs."""

    id: JobId
    name: str
    user: str
    state: State
    runtime_secs: float
    gpus: int


class OfUser(Figures):
    """The figures of one person."""

    user: str


class OfProject(Figures):
    """The figures of one project; null: of no project."""

    project: str | None


class _Sums(Figures, kw_only=True):
    """The figures of all jobs, and their parts."""

    peak_gpu_usage: int
    top_jobs: list[TopJob]
    by_user: list[OfUser]
    by_project: list[OfProject]


class StatsAnswer(_Sums):
    """What was used. `simulated`: the GPUs are, and so are the figures about them."""

    user: str | None
    since: str | None
    simulated: bool
    left_out_jobs: int


class PredictedJob(msgspec.Struct, kw_only=True):
    """A job whose memory was predicted. An error above zero: too much."""

    id: JobId
    name: str
    user: str
    state: str
    predicted_mib: int
    measured_mib: int | None
    error_percent: float | None


class PredictionsAnswer(msgspec.Struct, kw_only=True):
    """How good predictions of GPU memory were, if they are asked for."""

    user: str | None
    since: str | None
    simulated: bool
    predicted_jobs: int
    measured_jobs: int
    median_error_percent: float | None
    p90_error_percent: float | None
    worst_error_percent: float | None
    too_low_jobs: int
    jobs: list[PredictedJob]


FiguresType = TypeVar("FiguresType", bound=Figures)


def statistics_view(question: Question, found: Statistics) -> StatsAnswer:
    """Usage statistics. `simulated`: the GPUs are simulated, so GPU figures are not real."""
    top = [
        TopJob(
            id=key_label(job.key),
            name=job.name,
            user=job.user,
            state=job.state,
            runtime_secs=round(job.run_s, 3),
            gpus=job.gpus,
        )
        for job in found.top
    ]
    projects = found.by_project.items()
    return _with_figures(
        StatsAnswer,
        found.total,
        user=question.user,
        since=rfc3339(question.since or None),
        simulated=question.is_simulated,
        left_out_jobs=found.left_out,
        peak_gpu_usage=found.peak_gpus,
        top_jobs=top,
        by_user=[_with_figures(OfUser, usage, user=name) for name, usage in found.by_user.items()],
        by_project=[_with_figures(OfProject, usage, project=name or None) for name, usage in projects],
    )


def _with_figures(kind: type[FiguresType], usage: Usage, **own: Any) -> FiguresType:
    """An answer with sums and averages of some jobs, and its own fields."""
    ended = usage.completed + usage.failed + usage.timeout
    return kind(
        total_jobs=usage.total,
        completed_jobs=usage.completed,
        failed_jobs=usage.failed,
        cancelled_jobs=usage.cancelled,
        timeout_jobs=usage.timeout,
        running_jobs=usage.running,
        queued_jobs=usage.queued,
        avg_wait_secs=_mean(usage.waited_s, usage.started),
        avg_runtime_secs=_mean(usage.run_s, usage.ran),
        total_gpu_hours=round(usage.gpu_s / 3600, 3),
        jobs_with_gpus=usage.gpu_jobs,
        avg_gpus_per_job=_mean(usage.gpus, usage.gpu_jobs),
        # Cancelled jobs count neither as success nor as failure.
        success_rate=_mean(usage.completed, ended),
        **own,
    )


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 3) if count else None


def predictions_view(question: Question, found: Sequence[Prediction]) -> PredictionsAnswer:
    """Predictions of GPU memory, per job and summarised. A positive error means predicted too much."""
    errors = sorted(abs(_error_percent(job)) for job in found if job.measured_mib)
    return PredictionsAnswer(
        user=question.user,
        since=rfc3339(question.since or None),
        simulated=question.is_simulated,
        predicted_jobs=len(found),
        measured_jobs=len(errors),
        median_error_percent=round(median(errors), 2) if errors else None,
        p90_error_percent=round(errors[-(-9 * len(errors) // 10) - 1], 2) if errors else None,
        worst_error_percent=round(errors[-1], 2) if errors else None,
        too_low_jobs=sum(job.predicted_mib < job.measured_mib for job in found),
        jobs=[_predicted_job(job) for job in found],
    )


def _predicted_job(job: Prediction) -> PredictedJob:
    return PredictedJob(
        id=key_label(job.key),
        name=job.name,
        user=job.user,
        state=job.state,
        predicted_mib=job.predicted_mib,
        measured_mib=job.measured_mib or None,
        error_percent=round(_error_percent(job), 2) if job.measured_mib else None,
    )


def _error_percent(job: Prediction) -> float:
    return 100 * (job.predicted_mib / job.measured_mib - 1)
