"""Usage statistics. The database computes them in a worker thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.queries.job_filter import EVERY_USER
from gflow.core.queries.usage_report import Prediction, Question
from gflow.daemon.api.request import caller, context_of, parse_number, query_of, while_connected
from gflow.daemon.api.response import answer, wants_text
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.auth.users import user_name
from gflow.daemon.loop import timers
from gflow.errors import Forbidden, Refused, unknown
from gflow.options.times import parse_since
from gflow.store.reader import Reader
from gflow.store.statistics import predictions, statistics
from gflow.text.statistics import predictions_csv, predictions_page, statistics_csv, statistics_page
from gflow.wire.answers.statistics import predictions_view, statistics_view
from gflow.wire.queries import StatsQuery

T = TypeVar("T")
FORMS = ("table", "json", "csv")


async def show(request: Request) -> Response:
    """Usage statistics of the caller, of another user, or of all users."""
    context, query = context_of(request), query_of(request, StatsQuery)
    form = query.form or ("table" if wants_text(request) else "json")
    if form not in FORMS:
        raise unknown("output format", form, FORMS)
    user = None if query.all or query.user == EVERY_USER else query.user or user_name(caller(request)[0])
    if not viewer_of(request).sees_names and user != user_name(caller(request)[0]):
        raise Forbidden("usage of other users is private here")
    at = timers.now()
    question = Question(
        now=at.wall,
        boot=at.boot,
        user=user,
        since=parse_since(query.since) if query.since else 0.0,
        is_simulated=any(gpu.simulated for gpu in context.loop.state.machine.gpus.values()),
    )
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


async def _predictions(request: Request, question: Question, form: str, width: int) -> Response:
    """Predicted and measured GPU memory."""
    samples = context_of(request).settings.samples
    found = await _read(request, lambda reader: _compare(reader, question, samples))
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


def _compare(reader: Reader, question: Question, samples: Path) -> list[Prediction]:
    try:
        return predictions(reader, question, samples)
    except sqlite3.Error as error:
        raise Refused(f"the GPU samples cannot be read: {error}") from error
