"""Answers about quotas, GPU reservations and concurrency limits."""

from __future__ import annotations

import msgspec

from gflow.core.state.quotas import Limits, Scope, Usage
from gflow.core.state.reservations import Reservation, Status
from gflow.wire.encoding import JobId


class LimitAnswer(msgspec.Struct, kw_only=True):
    """The jobs whose number is bounded together, and by what; null: any number."""

    jobs: list[JobId]
    max_concurrent: int | None


class QuotaAnswer(msgspec.Struct, kw_only=True):
    """The quota of a user or project; null: no limit. No name: the default quota."""

    scope: Scope
    name: str | None
    max_running_jobs: int | None
    max_running_gpus: int | None
    max_queued_jobs: int | None


class QuotaLine(QuotaAnswer, kw_only=True):
    """A quota, and what counts against it."""

    running_jobs: int
    running_gpus: int
    queued_jobs: int


class QuotasAnswer(msgspec.Struct):
    """Every quota."""

    quotas: list[QuotaLine]


class ReservationAnswer(msgspec.Struct, kw_only=True):
    """GPUs kept for one person. Times are in seconds since 1970."""

    id: int
    user: str
    gpu_indices: tuple[int, ...]
    start_time: float
    end_time: float
    status: Status
    created_at: float
    cancelled_at: float | None
    # After a change: running jobs of other users that it stops when it begins.
    stops: list[JobId] = []


class ReservationsAnswer(msgspec.Struct):
    """Reservations, those that begin first in front."""

    reservations: list[ReservationAnswer]


def quota_view(scope: Scope, name: str, limits: Limits) -> QuotaAnswer:
    """The limits of a user or project; without a name, the default ones of the scope."""
    return QuotaAnswer(
        scope=scope,
        name=name or None,
        max_running_jobs=limits.max_running_jobs,
        max_running_gpus=limits.max_running_gpus,
        max_queued_jobs=limits.max_queued_jobs,
    )


def quota_row(scope: Scope, name: str, limits: Limits, usage: Usage) -> QuotaLine:
    """A row of the list of quotas: the limits, and the present usage."""
    return QuotaLine(
        **msgspec.structs.asdict(quota_view(scope, name, limits)),
        running_jobs=usage.jobs,
        running_gpus=usage.gpus,
        queued_jobs=usage.waiting,
    )


def reservation_view(one: Reservation, now: float, user: str) -> ReservationAnswer:
    """A reservation at the time `now`. `user`: the name to show, which may be a placeholder."""
    return ReservationAnswer(
        id=one.id,
        user=user,
        gpu_indices=one.gpus,
        start_time=one.start,
        end_time=one.end,
        status=one.status(now),
        created_at=one.created_at,
        cancelled_at=one.cancelled_at,
    )
