"""What was used, and by whom. Counted by the database in a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.statistics import Prediction, Question, Statistics
from gflow.daemon.api.answers import answer, wants_text
from gflow.daemon.api.asking import caller, context_of, number, query_of
from gflow.daemon.api.seeing import viewer
from gflow.daemon.context import Context
from gflow.daemon.people import user_name
from gflow.errors import Forbidden, Refused, unknown
from gflow.options.since import parse_since
from gflow.store.statistics import predictions, statistics
from gflow.text.predictions import predictions_csv, predictions_page
from gflow.text.statistics import statistics_csv, statistics_page
from gflow.wire.queries import StatsQuery
from gflow.wire.views import predictions_view, statistics_view

FORMS = ("table", "json", "csv")


async def show(request: Request) -> Response:
    """Usage of the caller, of a person, or of everybody."""
    context, query = context_of(request), query_of(request, StatsQuery)
    form = query.form or ("table" if wants_text(request) else "json")
    if form not in FORMS:
        raise unknown("form of output", form, FORMS)
    user = None if query.all else query.user or user_name(caller(request)[0])
    if not viewer(request).sees_names and user != user_name(caller(request)[0]):
        raise Forbidden("what others used is private here")
    question = Question(
        now=time.time(),
        user=user,
        since=parse_since(query.since) if query.since else 0.0,
        is_simulated=any(gpu.simulated for gpu in context.loop.state.machine.gpus.values()),
    )
    width = number("width", query.width or "0", 0)
    if query.predictions:
        return await _predictions(request, question, form, width)
    found = await asyncio.to_thread(_count, context, question)
    data: dict[str, Any] = statistics_view(question, found)
    return answer(
        request,
        lambda: data,
        lambda: statistics_csv(data) if form == "csv" else statistics_page(data, width),
    )


async def _predictions(request: Request, question: Question, form: str, width: int) -> Response:
    """Memory of GPUs that was predicted, beside what was measured."""
    found = await asyncio.to_thread(_compare, context_of(request), question)
    data: dict[str, Any] = predictions_view(question, found)
    return answer(
        request,
        lambda: data,
        lambda: predictions_csv(data) if form == "csv" else predictions_page(data, width),
    )


def _compare(context: Context, question: Question) -> list[Prediction]:
    reader = context.store.reader()
    try:
        return predictions(reader, question, context.settings.samples)
    except sqlite3.Error as error:
        raise Refused(f"the history of GPUs cannot be read: {error}") from error
    finally:
        reader.close()


def _count(context: Context, question: Question) -> Statistics:
    reader = context.store.reader()
    try:
        return statistics(reader, question)
    finally:
        reader.close()
