"""Answers about groups of jobs, such as sweeps, and about arrays."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gflow.core.model import Job
from gflow.core.queries.group_summary import GroupCounts, GroupSummary
from gflow.wire.answers.jobs import JobsAnswer, JobView, State
from gflow.wire.encoding import JobId, key_label, rfc3339


class RankedJob(msgspec.Struct, kw_only=True):
    """A job of a group, and its last value of the metric."""

    id: JobId
    state: State
    value: float
    parameters: dict[str, str]


class FailedJob(msgspec.Struct, kw_only=True):
    """A job of a group that failed or reached its time limit."""

    id: JobId
    state: State
    reason: str | None
    exit_code: int | None
    parameters: dict[str, str]


class GroupAnswer(msgspec.Struct, kw_only=True):
    """A group, or an array and its tasks. `left_s`, `ends_at`: expected; null: unknown, or it has ended.

    `progress`: the part that is done, from 0 to 1. `best`, `worst`: null if no job, or only one, reported the
    metric. `parameters`: those that differ between the jobs, with their values. `failed_jobs`: the first ten.
    """

    id: JobId
    name: str
    user: str
    total: int
    counts: GroupCounts
    progress: float
    left_s: float | None
    ends_at: str | None
    started_at: str | None
    finished_at: str | None
    metric: str
    best: RankedJob | None
    worst: RankedJob | None
    parameters: dict[str, list[str]]
    failed_jobs: list[FailedJob]


class TaskState(msgspec.Struct):
    """The state of one job of a group."""

    id: JobId
    state: State


class GroupFigures(msgspec.Struct, kw_only=True):
    """A group or an array in a listing: the figures of all of its jobs, as in `GroupAnswer`.

    `jobs`: the state of each job that has started or is in the queue by itself; null: there are too many.
    """

    id: JobId
    name: str
    total: int
    counts: GroupCounts
    progress: float
    left_s: float | None
    started_at: str | None
    finished_at: str | None
    jobs: list[TaskState] | None


class ListingRow(msgspec.Struct, kw_only=True):
    """A row of a listing. `group`: the group or array of which `job` is one; null: the job itself."""

    job: JobView
    group: GroupFigures | None


class RowsAnswer(msgspec.Struct, kw_only=True):
    """A listing with one row for each group, array and other job.

    `total`: the number of rows; null where it is not counted, and then `next` is the value of `after` for the
    next page. `next`: null if there is none. `jobs`: the number of jobs that match.
    """

    rows: list[ListingRow]
    total: int | None
    next: str | None
    jobs: int


class ShownJobsAnswer(JobsAnswer, kw_only=True):
    """Jobs in full. `group`: the figures of the one group or array that the request names."""

    group: GroupAnswer | None = None


def group_view(
    id_: JobId,
    name: str,
    user: str,
    summary: GroupSummary,
    *,
    now: float,
    metric: str,
    best: Job | None,
    worst: Job | None,
    parameters: dict[str, list[str]],
    failed: Sequence[Job],
) -> GroupAnswer:
    """The view of a group. `now`: on the wall clock."""
    left_s = summary.left_s
    return GroupAnswer(
        id=id_,
        name=name,
        user=user,
        total=summary.counts.total,
        counts=summary.counts,
        progress=round(summary.progress, 4),
        left_s=None if left_s is None else round(left_s, 1),
        ends_at=None if left_s is None else rfc3339(now + left_s),
        started_at=rfc3339(summary.started_at),
        finished_at=rfc3339(summary.finished_at),
        metric=metric,
        best=_ranked(best, metric),
        worst=_ranked(worst, metric),
        parameters=parameters,
        failed_jobs=[_failed(job) for job in failed],
    )


def _ranked(job: Job | None, metric: str) -> RankedJob | None:
    value = job.progress_report.metric(metric) if job is not None and job.progress_report else None
    if job is None or value is None:
        return None
    return RankedJob(
        id=key_label(job.key), state=job.state.value, value=value, parameters=dict(job.spec.parameters)
    )


def _failed(job: Job) -> FailedJob:
    return FailedJob(
        id=key_label(job.key),
        state=job.state.value,
        reason=str(job.reason) or None,
        exit_code=job.exit_code,
        parameters=dict(job.spec.parameters),
    )
