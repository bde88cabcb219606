"""Usage statistics. The database computes them in a worker thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.queries.job_filter import EVERY_USER
from gflow.core.queries.usage_report import Question
from gflow.daemon.api.request import caller, context_of, parse_number, query_of, while_connected
from gflow.daemon.api.response import answer, wants_text
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.auth.users import user_name
from gflow.daemon.loop import timers
from gflow.errors import Forbidden, Refused, UsageError, unknown
from gflow.options.times import parse_since
from gflow.store.reader import Reader
from gflow.store.statistics import DAY_S, predictions, statistics
from gflow.store.usage_history import MOST_DAYS, idle_jobs, usage_by_day
from gflow.text.statistics import predictions_csv, predictions_page, statistics_csv, statistics_page
from gflow.text.usage_chart import usage_chart, usage_days_csv
from gflow.wire.answers.statistics import predictions_view, statistics_view
from gflow.wire.answers.usage_days import UsageDaysAnswer, usage_days_view
from gflow.wire.queries import StatsQuery, UsageDaysQuery

T = TypeVar("T")
FORMS = ("table", "json", "csv")
# Days of the usage over time, unless the caller says since when.
USUAL_DAYS = 14
# Jobs with unused GPUs that are listed.
MOST_IDLE = 20


async def show(request: Request) -> Response:
    """Usage statistics of the caller, of another user, or of all users."""
    context, query = context_of(request), query_of(request, StatsQuery)
    form, question = _form_of(request, query.form), _question_of(request, query)
    width = parse_number("width", query.width or "0", 0)
    if query.predictions:
        return await _predictions(request, question, form, width)
    summaries = context.settings.summaries
    found = await _read(request, lambda reader: statistics(reader, question, summaries))
    data = statistics_view(question, found)
    return answer(
        request,
        lambda: data,
        lambda: statistics_csv(data) if form == "csv" else statistics_page(data, width),
    )


def _form_of(request: Request, named: str) -> str:
    form = named or ("table" if wants_text(request) else "json")
    if form not in FORMS:
        raise unknown("output format", form, FORMS)
    return form


def _question_of(request: Request, query: StatsQuery | UsageDaysQuery) -> Question:
    """The question of a query. Raises Forbidden if the usage of others is private."""
    own = user_name(caller(request)[0])
    user = None if query.all or query.user == EVERY_USER else query.user or own
    if not viewer_of(request).sees_names and user != own:
        raise Forbidden("usage of other users is private here")
    at = timers.now()
    return Question(
        now=at.wall,
        boot=at.boot,
        user=user,
        since=parse_since(query.since) if query.since else 0.0,
        is_simulated=any(gpu.simulated for gpu in context_of(request).loop.state.machine.gpus.values()),
    )


async def show_days(request: Request) -> Response:
    """GPU-hours, efficiency and waits by day, user and project."""
    context, query = context_of(request), query_of(request, UsageDaysQuery)
    form, question = _form_of(request, query.form), _question_of(request, query)
    width = parse_number("width", query.width or "0", 0)
    since = question.since or question.now - USUAL_DAYS * DAY_S
    if since > question.now:
        raise UsageError("the period begins in the future")
    if question.now - since > MOST_DAYS * DAY_S:
        raise UsageError(f"the period has more than {MOST_DAYS} days", hint="--since 90d")
    question = question._replace(since=since)
    samples, gpus = context.settings.samples, len(context.loop.state.machine.gpus)

    def count(reader: Reader) -> UsageDaysAnswer:
        days = usage_by_day(reader, question, samples)
        return usage_days_view(question, days, gpus, idle_jobs(reader, question, samples, MOST_IDLE))

    data = await _read(request, lambda reader: _with_samples(lambda: count(reader)))
    return answer(
        request, lambda: data, lambda: usage_days_csv(data) if form == "csv" else usage_chart(data, width)
    )


async def _predictions(request: Request, question: Question, form: str, width: int) -> Response:
    """Predicted and measured GPU memory."""
    samples = context_of(request).settings.samples
    found = await _read(request, lambda reader: _with_samples(lambda: predictions(reader, question, samples)))
    data = predictions_view(question, found)
    return answer(
        request,
        lambda: data,
        lambda: predictions_csv(data) if form == "csv" else predictions_page(data, width),
    )


async def _read(request: Request, work: Callable[[Reader], T]) -> T:
    """Query the database in a worker thread. Cancelled if the client disconnects."""
    context, (uid, _) = context_of(request), caller(request)
    return await while_connected(request, context.threads.read(uid, context.store.reader, work))


def _with_samples(work: Callable[[], T]) -> T:
    """Do work that reads the GPU samples. Raises Refused if their file cannot be read."""
    try:
        return work()
    except sqlite3.Error as error:
        raise Refused(f"the GPU samples cannot be read: {error}") from error
