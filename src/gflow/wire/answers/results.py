"""Results of jobs: what each was given, what it reported last, and how it ended."""

from __future__ import annotations

import msgspec

from gflow.core.forecast.explain import Blocker
from gflow.core.model import Job
from gflow.wire.answers.jobs import State


class JobResult(msgspec.Struct, kw_only=True, gc=False):
    """One job. `run_s`: run time of the last attempt, so far if it runs."""

    # `42_[4-9]` for the waiting tasks of an array.
    id: int | str
    name: str
    parameters: dict[str, str]
    metrics: dict[str, float]
    state: State
    reason: str | None
    exit_code: int | None
    run_s: float | None
    attempts: int


class ResultsAnswer(msgspec.Struct, kw_only=True):
    """Results, and how many jobs there are; more than are listed where a limit left some out."""

    results: list[JobResult]
    total: int


def job_result(id: str, job: Job, why: Blocker | None, run_s: float | None) -> JobResult:
    """The result of a job. `why`: the blocker of a waiting job."""
    return JobResult(
        id=int(id) if id.isdecimal() else id,
        name=job.name,
        parameters=dict(job.spec.parameters),
        metrics=reported_metrics(job),
        state=job.state.value,
        reason=str(why or job.reason) or None,
        exit_code=job.exit_code,
        run_s=None if run_s is None else round(run_s, 3),
        attempts=job.attempt,
    )


def reported_metrics(job: Job) -> dict[str, float]:
    """The metrics that the job reported last, with its loss and its rate."""
    report = job.progress_report
    if report is None:
        return {}
    found = {"loss": report.loss} if report.loss is not None else {}
    if report.samples_per_s:
        found["samples_per_s"] = report.samples_per_s
    return found | report.metrics
