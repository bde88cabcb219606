"""Routes that read single jobs: details, wait, log path, wait report, history."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.forecast.wait_report import WaitReport, wait_report
from gflow.core.ids import label
from gflow.core.model import Job
from gflow.core.task_set import parse_tasks
from gflow.daemon.api.handlers.gpu_usage import usage_of
from gflow.daemon.api.permissions import check
from gflow.daemon.api.request import (
    caller,
    context_of,
    existing_job,
    job_in_path,
    key_of,
    keys_of,
    while_connected,
)
from gflow.daemon.api.response import answer, wants_text
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.auth.users import user_name
from gflow.daemon.execution.cluster_forecast import add_cluster_forecast
from gflow.daemon.execution.log_paths import log_path
from gflow.daemon.loop import timers
from gflow.errors import Refused, UsageError, no_job
from gflow.job_states import WAITING
from gflow.text.end_line import spell_end
from gflow.text.job_page import history_page, job_page
from gflow.text.queue import Entry
from gflow.text.usage import most_memory, summary
from gflow.text.why import why_page
from gflow.wire.answers.job_details import LogAnswer, Used, history_view, why_view
from gflow.wire.answers.jobs import jobs_view
from gflow.wire.encoding import key_label
from gflow.wire.shell_words import spell_blockers

# Most jobs shown in full, jobs rendered in one turn of the loop, and the separator of their pages.
MOST_SHOWN = 1000
TOGETHER = 50
BETWEEN = "=" * 80 + "\n"


async def show(request: Request) -> Response:
    """Show jobs in full; in JSON, an array with its tasks."""
    context, viewer = context_of(request), viewer_of(request)
    keys = keys_of(context, request, [request.path_params["job"]])
    if len(keys) > MOST_SHOWN:
        raise UsageError(f"{len(keys):,} jobs are too many to show", hint="gqueue lists any number")
    entries: list[Entry] = []
    pages: list[str] = []
    for key in keys:
        entries += context.entries([existing_job(context, key)], viewer)
        if wants_text(request):
            job, why = entries[-1]
            totals = await _totals(request, job) if len(keys) == 1 and viewer.sees_details(job) else []
            log = log_path(context.settings, job) if viewer.sees_details(job) else ""
            used, most = (summary(totals), most_memory(totals)) if totals else ("", 0)
            pages.append(job_page(job, why, timers.now(), log, used, most))
        if len(entries) % TOGETHER == 0:
            await asyncio.sleep(0)  # let other requests run
    if len(keys) == 1 and entries[0][0].is_array:
        entries += context.entries(context.store.tasks(keys[0]), viewer)
    return answer(request, lambda: jobs_view(entries), lambda: BETWEEN.join(pages))


async def _totals(request: Request, job: Job) -> list[Used]:
    """Totals of a job's GPU usage, one row per GPU."""
    if not job.spec.gpus or not job.attempt:
        return []
    return (await usage_of(request, job)).totals


async def wait(request: Request) -> Response:
    """Wait for the end of a job: the answer comes when its state is final."""
    context = context_of(request)
    key = key_of(context, request)
    job = await while_connected(request, context.loop.wait_for_end(key))
    if job is None:
        raise no_job(label(key))
    shown = viewer_of(request).redact_job(job)
    return answer(request, lambda: jobs_view([(shown, None)]), lambda: f"{job.label} {job.state.value}\n")


async def show_log_path(request: Request) -> Response:
    """The path of a job's log, and whether the job may still write to it."""
    context = context_of(request)
    job = job_in_path(context, request)
    check(request, [job])
    if job.is_array:
        raise Refused(
            f"job {job.label} is an array, and each of its tasks has a log",
            hint=f"name one: gjob log {job.label}_{parse_tasks(job.spec.array).first}",
        )
    path, viewer = log_path(context.settings, job), viewer_of(request)
    ((_, why),) = context.entries([job], viewer)
    waits = str(why or job.reason or job.state.value) if job.state in WAITING and not job.attempt else None
    ended = spell_end(viewer.redact_job(job), timers.now().boot) if job.is_final else None
    data = LogAnswer(
        job_id=key_label(job.key), path=path, final=job.is_final, uid=job.uid, waits=waits, ended=ended
    )
    return answer(request, lambda: data, lambda: f"{path}\n")


async def explain_wait(request: Request) -> Response:
    """Why a job waits: its blockers, its expected start, and changes that would start it now."""
    context = context_of(request)
    job = job_in_path(context, request)
    at, viewer = timers.now(), viewer_of(request)
    shown = viewer.redact_job(job)
    query = None
    if job in context.loop.state.ready:
        uid, _ = caller(request)
        query = await while_connected(request, context.forecasts.forecast_for(uid, job))
    waits = job.state in WAITING
    found = wait_report(context.loop.state, job, at, query) if waits else None
    if found is not None and job.remote is not None:
        found = await add_cluster_forecast(context, job, found)
    if found is not None:
        blockers = [why for why in map(viewer.redact_blocker, found.blockers) if why is not None]
        found = msgspec.structs.replace(found, blockers=spell_blockers(job, blockers))
    data = why_view(job, shown.reason, found or WaitReport([], None, []))
    return answer(request, lambda: data, lambda: why_page(shown, found, at.wall))


async def show_history(request: Request) -> Response:
    """The audit log of a job: every event, with the user who caused it."""
    context = context_of(request)
    job = job_in_path(context, request)
    check(request, [job])
    redact = viewer_of(request).redact_text
    lines = [line._replace(detail=redact(line.detail)) for line in context.store.audit_of(job.key)]
    data = history_view(job, lines, user_name)
    return answer(request, lambda: data, lambda: history_page(lines, user_name))
