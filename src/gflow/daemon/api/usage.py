"""Routes about what GPUs and jobs did."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gflow.core.model import Job
from gflow.daemon.api.answers import answer
from gflow.daemon.api.asking import context_of, known, one_key, query_of
from gflow.daemon.api.gpus import SLOWED
from gflow.daemon.api.seeing import check_visible
from gflow.daemon.context import Context
from gflow.store.samples import OfJob, samples_of
from gflow.text.usage import usage_csv, usage_page
from gflow.wire.queries import UsageQuery
from gflow.wire.views import key_label, rfc3339

log = logging.getLogger("gflow.api")


async def usage(request: Request) -> Response:
    """What a job did with its GPUs; `csv` for a spreadsheet."""
    context, query = context_of(request), query_of(request, UsageQuery)
    job = known(context, one_key(context, request))
    check_visible(request, job)
    data = await usage_of(context, job)
    if query.csv:
        return PlainTextResponse(usage_csv(data["samples"]))
    return answer(request, lambda: data, lambda: usage_page(data))


async def usage_of(context: Context, job: Job) -> dict[str, Any]:
    samples, totals = await asyncio.to_thread(_read, context, job.label)
    return {
        "job": key_label(job.key),
        "predicted_mib": job.spec.predicted_mib or None,
        "samples": [_view(one) for one in samples],
        "totals": [_view(one) for one in totals],
    }


def _read(context: Context, label: str) -> tuple[list[OfJob], list[OfJob]]:
    try:
        return samples_of(context.settings.samples, label)
    except sqlite3.Error as error:
        log.warning("the history of GPUs cannot be read: %s", error)
        return [], []


def _view(one: OfJob) -> dict[str, Any]:
    mean = one.mean
    return {
        "at": rfc3339(mean.at),
        "gpu": one.gpu,
        "span_s": mean.span,
        "busy": mean.busy,
        "busy_most": mean.busy_most,
        "memory_mib": mean.memory_mib,
        "power_w": mean.power_w,
        "temperature": mean.heat,
        "clock_mhz": mean.clock_mhz,
        "slowed": [word for bit, word in SLOWED.items() if mean.slowed & bit],
    }
