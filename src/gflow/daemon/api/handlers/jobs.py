"""Routes that read single jobs: details, wait, log path, wait report, history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gflow.core.forecast.wait_report import WaitReport, wait_report
from gflow.core.ids import JobKey, label
from gflow.core.model import Job
from gflow.core.task_set import parse_tasks
from gflow.daemon.api.end_facts import end_facts
from gflow.daemon.api.handlers.gpu_usage import usage_of
from gflow.daemon.api.handlers.groups import (
    details_view,
    group_details,
    group_response,
    tasks_details,
    tasks_response,
)
from gflow.daemon.api.permissions import check, may_ask_cluster
from gflow.daemon.api.request import (
    all_keys_of,
    caller,
    context_of,
    existing_job,
    job_in_path,
    key_of,
    query_of,
    while_connected,
)
from gflow.daemon.api.response import answer, shown_jobs, wants_text
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.auth.users import user_name
from gflow.daemon.execution.cluster_forecast import add_cluster_forecast
from gflow.daemon.execution.cluster_launch import folder_shown
from gflow.daemon.execution.log_paths import log_path
from gflow.daemon.execution.remote_logs import refresh_log
from gflow.daemon.loop import timers
from gflow.daemon.loop.cooperative import FEW, in_slices
from gflow.errors import Refused, clean_page, no_job
from gflow.job_states import WAITING
from gflow.text.end_line import spell_end
from gflow.text.job_page import history_page, job_page
from gflow.text.usage import most_memory, summary
from gflow.text.why import why_page
from gflow.wire.answers.job_details import EnvironmentAnswer, LogAnswer, Used, history_view, why_view
from gflow.wire.answers.jobs import jobs_view
from gflow.wire.encoding import key_label
from gflow.wire.job_selectors import Group, parse_selectors
from gflow.wire.queries import ShowQuery
from gflow.wire.shell_words import spell_blockers

# The separator of the pages of several jobs.
BETWEEN = "=" * 80 + "\n"


async def show(request: Request) -> Response:
    """Show jobs in full; a group, such as a sweep, or an array with the figures of its jobs."""
    context, text = context_of(request), request.path_params["job"]
    query_of(request, ShowQuery)
    selectors = parse_selectors([text])
    if len(selectors) == 1 and isinstance(selectors[0], Group):
        details = await group_details(request, selectors[0].number)
        if wants_text(request):
            return group_response(request, details)
        return shown_jobs(
            request, await all_keys_of(context, request, [text]), details_view(request, details)
        )
    keys = await all_keys_of(context, request, [text])
    async for some in in_slices(keys, FEW):
        jobs = [existing_job(context, key) for key in some]
    if len(keys) == 1:
        return await _show_one(request, jobs[0])
    if not wants_text(request):
        return shown_jobs(request, keys)
    return StreamingResponse(_pages(request, keys), media_type="text/plain; charset=utf-8")


async def _show_one(request: Request, job: Job) -> Response:
    details = await tasks_details(request, job) if job.is_array else None
    if not wants_text(request):
        has_tasks = job.is_array and query_of(request, ShowQuery).tasks
        tasks = [task.key for task in context_of(request).store.tasks(job.key)] if has_tasks else []
        return shown_jobs(request, [job.key, *tasks], details and details_view(request, details))
    page = await _page(request, job)
    if details is not None:
        return tasks_response(request, details, page)
    return Response(clean_page(page), media_type="text/plain; charset=utf-8")


async def _pages(request: Request, keys: Sequence[JobKey]) -> AsyncIterator[str]:
    """Yield the pages of several jobs, without their use of GPUs."""
    context, between = context_of(request), ""
    async for some in in_slices(keys, FEW):
        for key in some:
            yield between + clean_page(_page_of(request, existing_job(context, key)))
            between = BETWEEN


async def _page(request: Request, job: Job) -> str:
    """The page of one job, with its use of GPUs."""
    totals = await _totals(request, job) if viewer_of(request).sees_details(job) else []
    used, most = (summary(totals), most_memory(totals)) if totals else ("", 0)
    return _page_of(request, job, used, most)


def _page_of(request: Request, job: Job, used: str = "", most: int = 0) -> str:
    context, viewer = context_of(request), viewer_of(request)
    ((shown, why),) = context.entries([job], viewer)
    log = log_path(context.settings, job) if viewer.sees_details(job) else ""
    there = folder_shown(context.settings, context.target, job) if log else ""
    return job_page(shown, why, timers.now(), log, used, most, there)


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
    note = await refresh_log(context, job)
    path, viewer = log_path(context.settings, job), viewer_of(request)
    ((_, why),) = context.entries([job], viewer)
    waits = str(why or job.reason or job.state.value) if job.state in WAITING and not job.attempt else None
    ended = spell_end(viewer.redact_job(job), timers.now().boot) if job.is_final else None
    data = LogAnswer(
        job_id=key_label(job.key), path=path, final=job.is_final, uid=job.uid, waits=waits, ended=ended
    )
    data.note = note or None
    return answer(request, lambda: data, lambda: f"{path}\n")


async def show_environment(request: Request) -> Response:
    """The variables of a job's submitted environment that a diagnosis needs: paths, CUDA, NCCL, PyTorch."""
    context = context_of(request)
    job = job_in_path(context, request)
    check(request, [job])
    variables = context.executor.submitted_variables(job)
    data = EnvironmentAnswer(job_id=key_label(job.key), uid=job.uid, variables=variables)
    lines = sorted(f"{name}={value}\n" for name, value in (variables or {}).items())
    return answer(request, lambda: data, lambda: clean_page("".join(lines)))


async def explain_wait(request: Request) -> Response:
    """Why a job waits: its blockers, its expected start, and changes that would start it now."""
    context = context_of(request)
    job = job_in_path(context, request)
    at, viewer = timers.now(), viewer_of(request)
    shown = viewer.redact_job(job)
    query, queued = None, context.queued_as(job)
    if queued in context.loop.state.ready:
        uid, _ = caller(request)
        query = await while_connected(request, context.forecasts.forecast_for(uid, queued))
    waits = job.state in WAITING
    found = wait_report(context.loop.state, queued, at, query) if waits else None
    if found is not None and queued is not job:  # options are those of the array
        found = msgspec.structs.replace(found, instead=[])
    if found is not None and job.remote is not None and may_ask_cluster(request, job):
        found = await add_cluster_forecast(context, job, found)
    if found is not None:
        blockers = [why for why in map(viewer.redact_blocker, found.blockers) if why is not None]
        found = msgspec.structs.replace(found, blockers=spell_blockers(job, blockers))
    data = why_view(job, shown.reason, found or WaitReport([], None, []))
    if job.is_final and not wants_text(request):
        data.end = await end_facts(request, job, viewer)
    return answer(request, lambda: data, lambda: why_page(shown, found, at.wall, in_array=queued is not job))


async def show_history(request: Request) -> Response:
    """The audit log of a job: every event, with the user who caused it."""
    context = context_of(request)
    job = job_in_path(context, request)
    check(request, [job])
    redact = viewer_of(request).redact_text
    lines = [line._replace(detail=redact(line.detail)) for line in context.store.audit_of(job.key)]
    data = history_view(job, lines, user_name)
    return answer(request, lambda: data, lambda: history_page(lines, user_name))
