"""Routes for quotas and GPU reservations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.events import ChangeReservation, Reserve, SetQuota, Unreserve
from gflow.core.lifecycle.admin import plan_change, plan_reservation
from gflow.core.model import Moment
from gflow.core.queries.job_filter import EVERY_USER
from gflow.core.scheduling.eviction import jobs_to_evict
from gflow.core.state.quotas import PROJECT, USER, Limits, Scope
from gflow.core.state.reservations import Reservation
from gflow.core.state.state import State
from gflow.daemon.api.permissions import is_operator, rights_of
from gflow.daemon.api.request import caller, context_of, query_of, read
from gflow.daemon.api.response import answer
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.auth.users import similar_accounts
from gflow.daemon.context import Context
from gflow.daemon.loop import timers
from gflow.errors import NotFound, Refused, UsageError, did_you_mean
from gflow.options.job_options import Option
from gflow.options.values import read as read_option
from gflow.text.gctl import quota_line, quota_page, reservation_line, reservation_page, timeline
from gflow.wire.answers.quotas import (
    QuotaLine,
    QuotasAnswer,
    ReservationAnswer,
    ReservationsAnswer,
    quota_row,
    quota_view,
    reservation_view,
)
from gflow.wire.encoding import key_label
from gflow.wire.queries import ReservationsQuery
from gflow.wire.requests import QuotaRequest, ReservationChange, ReservationRequest

_NAME = Option("name", "name", "user or project")


async def list_quotas(request: Request) -> Response:
    """List all quotas, with the current use of each user and project."""
    viewer, rights = viewer_of(request), rights_of(request)

    def is_shown(scope: str, name: str) -> bool:
        return viewer.sees_names or (name == viewer.user if scope == USER else rights.is_member(name))

    lines = [
        line
        for line in quota_lines(context_of(request).loop.state)
        if not line.name or is_shown(line.scope, line.name)
    ]
    return answer(
        request, lambda: QuotasAnswer(lines), lambda: quota_page(lines, may_set=is_operator(request))
    )


async def set_quota(request: Request) -> Response:
    """Set the quota of a user or project; without limits, remove it."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, QuotaRequest)
    name = read_option(_NAME, wanted.name) if wanted.name else ""
    limits = Limits(wanted.max_running_jobs, wanted.max_running_gpus, wanted.max_queued_jobs)
    given = None if wanted.remove else limits
    if not wanted.remove and limits == Limits():
        raise UsageError("a quota needs a limit", hint="gctl quota set --user ann --max-running-gpus 4")
    if given and name and not wanted.force:
        await _check_known(context, wanted.scope, name)

    def event(at: Moment) -> SetQuota:
        return SetQuota(at=at, uid=uid, scope=wanted.scope, name=name, limits=given)

    await context.loop.ask(event, origin)
    now = context.loop.state.accounting.quota_usage.quotas.of(wanted.scope, name) if given else Limits()
    data = quota_view(wanted.scope, name, now)
    return answer(request, lambda: data, lambda: quota_line(data, removed=given is None))


async def list_reservations(request: Request) -> Response:
    """List GPU reservations, ordered by start time."""
    state, asked = context_of(request).loop.state, query_of(request, ReservationsQuery)
    now = time.time()
    viewer = viewer_of(request)
    found = [
        one for one in state.reserved.all.values() if _matches(one, viewer.redact_user(one.user), asked, now)
    ]
    found.sort(key=lambda one: (one.start, one.id))
    views = [_redacted_view(request, one, now) for one in found]
    if asked.timeline:
        span = (
            now if asked.begin is None else asked.begin,
            now + 48 * 3600 if asked.end is None else asked.end,
        )
        return answer(request, lambda: ReservationsAnswer(views), lambda: timeline(views, span))
    return answer(request, lambda: ReservationsAnswer(views), lambda: reservation_page(views))


async def reserve(request: Request) -> Response:
    """Reserve GPUs for a user, from a start time for a duration."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, ReservationRequest)
    user = read_option(_NAME, wanted.user)
    gpus = tuple(wanted.gpu_indices or ())
    if bool(gpus) == bool(wanted.gpu_count):
        raise UsageError(
            "a reservation needs a number of GPUs, or which ones", hint="--gpus 2, or --gpu-spec 0,2-3"
        )
    if not wanted.force:
        await _check_known(context, USER, user)

    def event(at: Moment) -> Reserve:
        start = max(at.wall, wanted.start_time) if wanted.start_time else at.wall
        end = (wanted.start_time or at.wall) + wanted.duration_secs
        return Reserve(at=at, uid=uid, user=user, gpus=gpus, count=wanted.gpu_count, start=start, end=end)

    if wanted.dry_run:
        planned = plan_reservation(context.loop.state, event(timers.now()))
        return _reservation_answer(request, planned, is_plan=True)
    await context.loop.ask(event, origin)
    found = context.loop.state.reserved.all
    return _reservation_answer(request, found[max(found)], status=201)


async def change_reservation(request: Request) -> Response:
    """Move a GPU reservation to another time, or to other GPUs."""
    context, (uid, origin) = context_of(request), caller(request)
    number, wanted = _find_reservation(request).id, await read(request, ReservationChange)

    def event(at: Moment) -> ChangeReservation:
        found = context.loop.state.reserved.all[number]
        begin = found.start if wanted.start_time is None else wanted.start_time
        length = found.end - found.start if wanted.duration_secs is None else wanted.duration_secs
        start = begin if begin == found.start else max(at.wall, begin)
        gpus = tuple(found.gpus if wanted.gpu_indices is None else wanted.gpu_indices)
        return ChangeReservation(at=at, uid=uid, id=number, gpus=gpus, start=start, end=begin + length)

    if wanted.dry_run:
        planned = plan_change(context.loop.state, event(timers.now()))
        return _reservation_answer(request, planned, is_plan=True)
    await context.loop.ask(event, origin)
    return _reservation_answer(request, context.loop.state.reserved.all[number])


def _reservation_answer(
    request: Request, one: Reservation, *, is_plan: bool = False, status: int = 200
) -> Response:
    """A reservation that was made, changed or planned, and the jobs that it stops."""
    state, at = context_of(request).loop.state, timers.now()
    view = reservation_view(one, at.wall, one.user)
    jobs = jobs_to_evict(state, one.user, one.gpus, one.start, at)
    view.stops = [key_label(job.key) for job in jobs]
    labels = [job.label for job in jobs]
    return answer(request, lambda: view, lambda: reservation_line(view, labels, is_plan=is_plan), status)


async def show_reservation(request: Request) -> Response:
    """Show one GPU reservation."""
    view = _redacted_view(request, _find_reservation(request), time.time())
    return answer(request, lambda: view, lambda: reservation_page([view]))


async def cancel_reservation(request: Request) -> Response:
    """Cancel a GPU reservation."""
    context, (uid, origin) = context_of(request), caller(request)
    found = _find_reservation(request)
    await context.loop.ask(lambda at: Unreserve(at=at, uid=uid, id=found.id), origin)
    cancelled = context.loop.state.reserved.all[found.id]
    view = reservation_view(cancelled, time.time(), cancelled.user)
    return answer(request, lambda: view, lambda: f"Reservation {found.id} is cancelled.\n")


async def _check_known(context: Context, scope: Scope, name: str) -> None:
    """Refuse a user without an account, and a project that is not in `projects.known_projects`."""
    usage = context.loop.state.accounting.quota_usage
    if name in usage.named(scope) or name in usage.quotas.named(scope):
        return
    if scope == PROJECT:
        others: Sequence[str] = context.settings.config["projects.known_projects"]
        is_known = not others or name in others
    else:
        others = await asyncio.to_thread(similar_accounts, name)
        is_known = name in others
    if not is_known:
        close = did_you_mean(name, others)
        raise Refused(
            f"there is no {scope} {name!a:.60} here",
            hint=f"{close} --force accepts the name".strip(),
        )


def _find_reservation(request: Request) -> Reservation:
    text = request.path_params["id"]
    table = context_of(request).loop.state.reserved
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if number not in table.all:
        raise NotFound(f"there is no reservation {text!a:.40}", hint="see gctl reserve list")
    return table.all[number]


def _redacted_view(request: Request, one: Reservation, now: float) -> ReservationAnswer:
    """The view of a reservation, with its user redacted for the caller."""
    return reservation_view(one, now, viewer_of(request).redact_user(one.user))


def _matches(one: Reservation, user: str, asked: ReservationsQuery, now: float) -> bool:
    status = one.status(now)
    if asked.active and status not in ("pending", "active"):
        return False
    return asked.user in ("", EVERY_USER, user) and asked.status in ("", status)


def quota_lines(state: State) -> list[QuotaLine]:
    """One row per user and project with a quota of its own or usage under the default quota.

    A row without a name is the default quota of its scope.
    """
    lines = []
    for scope in (USER, PROJECT):
        named, default = (
            state.accounting.quota_usage.quotas.named(scope),
            state.accounting.quota_usage.quotas.named(scope).get(""),
        )
        names = set(named)
        if default is not None:
            names |= state.accounting.quota_usage.named(scope).keys()
        for name in sorted(names):
            usage = state.accounting.quota_usage.of(scope, name)
            limits = state.accounting.quota_usage.quotas.of(scope, name) if name else default or Limits()
            lines.append(quota_row(scope, name, limits, usage))
    return lines
