"""The answer about usage over time: GPU-hours, efficiency and waits by day, user and project."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from gflow.core.queries.usage_report import DayUsage, IdleJob, Question, UsedGpus
from gflow.wire.answers.jobs import State
from gflow.wire.encoding import JobId, key_label, rfc3339


class GpuHours(msgspec.Struct, kw_only=True):
    """GPU-hours that jobs had, the part with readings of utilisation, and in it those that were busy."""

    gpu_hours: float
    measured_gpu_hours: float
    busy_gpu_hours: float

    @property
    def efficiency(self) -> float | None:
        """Busy GPU time by allocated GPU time, 0 to 1; None: nothing was measured."""
        return self.busy_gpu_hours / self.measured_gpu_hours if self.measured_gpu_hours else None


class DayGroup(GpuHours):
    """The use of one user in one project; null: in no project."""

    user: str
    project: str | None


class _WithWaits(GpuHours, kw_only=True):
    """The use of some jobs, and how long those that started had waited."""

    started_jobs: int
    median_wait_secs: float | None
    p90_wait_secs: float | None


class UsageDay(_WithWaits):
    """One day, in the time zone of the daemon: `2026-12-24`."""

    day: str
    groups: list[DayGroup]


class UsageTotal(_WithWaits):
    """The use of a user, or of a project, in the whole period; null: of no project."""

    name: str | None


class IdleJobView(GpuHours, kw_only=True):
    """A job that used its GPUs for less than half of the time it had them."""

    id: JobId
    name: str
    user: str
    state: State


class UsageDaysAnswer(msgspec.Struct, kw_only=True):
    """Usage over time, the oldest day first. `gpus`: GPUs of the machine now."""

    user: str | None
    since: str
    until: str
    simulated: bool
    gpus: int
    total: UsageTotal
    days: list[UsageDay]
    by_user: list[UsageTotal]
    by_project: list[UsageTotal]
    # The jobs with the most GPU time that was allocated and not used, the worst first.
    idle_jobs: list[IdleJobView] = []


def usage_days_view(
    question: Question, days: Sequence[DayUsage], gpus: int, idle: Sequence[IdleJob] = ()
) -> UsageDaysAnswer:
    """The answer for these days."""
    return UsageDaysAnswer(
        user=question.user,
        since=rfc3339(question.since),
        until=rfc3339(question.now),
        simulated=question.is_simulated,
        gpus=gpus,
        total=_total(None, days, None),
        days=[_day(day) for day in days],
        by_user=_totals(days, 0),
        by_project=_totals(days, 1),
        idle_jobs=[
            IdleJobView(
                id=key_label(job.key), name=job.name, user=job.user, state=job.state, **_hours([job.used])
            )
            for job in idle
        ],
    )


def _day(day: DayUsage) -> UsageDay:
    groups = [
        DayGroup(user=user, project=project or None, **_hours([used]))
        for (user, project), used in sorted(day.used.items())
    ]
    waits = [wait for some in day.waits_s.values() for wait in some]
    return UsageDay(
        day=time.strftime("%Y-%m-%d", time.localtime(day.start)),
        groups=groups,
        **_hours(day.used.values()),
        **_waits(waits),
    )


def _totals(days: Sequence[DayUsage], at: int) -> list[UsageTotal]:
    """The totals by user (`at` 0) or by project (1), the largest first."""
    names = {key[at] for day in days for key in (*day.used, *day.waits_s)}
    totals = [_total(name, days, at) for name in names]
    return sorted(totals, key=lambda one: (-one.gpu_hours, -one.started_jobs, one.name or ""))


def _total(name: str | None, days: Sequence[DayUsage], at: int | None) -> UsageTotal:
    used = [use for day in days for key, use in day.used.items() if at is None or key[at] == name]
    waits = [
        wait
        for day in days
        for key, some in day.waits_s.items()
        if at is None or key[at] == name
        for wait in some
    ]
    return UsageTotal(name=name or None, **_hours(used), **_waits(waits))


def _hours(used: Iterable[UsedGpus]) -> dict[str, Any]:
    found = list(used)
    return {
        "gpu_hours": round(sum(use.gpu_s for use in found) / 3600, 6),
        "measured_gpu_hours": round(sum(use.measured_s for use in found) / 3600, 6),
        "busy_gpu_hours": round(sum(use.busy_s for use in found) / 3600, 6),
    }


def _waits(waits: list[float]) -> dict[str, Any]:
    ordered = sorted(waits)
    return {
        "started_jobs": len(waits),
        "median_wait_secs": round(median(ordered), 3) if ordered else None,
        "p90_wait_secs": round(ordered[-(-9 * len(ordered) // 10) - 1], 3) if ordered else None,
    }
