"""Routes that look at single jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from itertools import chain
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.ids import label
from gflow.core.model import Job
from gflow.core.tasks import parse_tasks
from gflow.daemon.api.answers import answer
from gflow.daemon.api.asking import context_of, keys_of, known, one, one_key
from gflow.daemon.api.people import user_name
from gflow.daemon.perform import log_path
from gflow.errors import NotFound, Refused
from gflow.text.pages import job_page, story_page
from gflow.wire.views import jobs_view, key_label, line_view

# Jobs looked up in one go, and what stands between their pages.
TOGETHER = 100
BETWEEN = "=" * 80 + "\n"


async def show(request: Request) -> Response:
    """One job or several; as JSON, an array with its tasks."""
    context = context_of(request)
    jobs = []
    for index, key in enumerate(keys_of(context, request, [request.path_params["job"]])):
        jobs.append(known(context, key))
        if index % TOGETHER == TOGETHER - 1:
            await asyncio.sleep(0)  # others may want something too

    def view() -> dict[str, Any]:
        tasks = (context.store.tasks(job.key) if job.is_array else () for job in jobs)
        return jobs_view(context.entries(chain(jobs, *tasks) if len(jobs) == 1 else jobs))

    def text() -> str:
        now = time.time()
        pages = [
            job_page(job, why, now, log_path(context.settings, job)) for job, why in context.entries(jobs)
        ]
        return BETWEEN.join(pages)

    return answer(request, view, text)


async def wait(request: Request) -> Response:
    """Answers when the job is final."""
    context = context_of(request)
    key = one_key(context, request)
    job = await _while_connected(request, context.loop.ended(key))
    if job is None:
        raise NotFound(f"there is no job {label(key)}")
    return answer(request, lambda: jobs_view([(job, None)]), lambda: f"{job.label} {job.state.value}\n")


async def _while_connected(request: Request, coming: Coroutine[Any, Any, Job | None]) -> Job | None:
    """Wait for `coming` only as long as somebody waits for the answer."""
    wanted = asyncio.ensure_future(coming)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({wanted, gone}, return_when=asyncio.FIRST_COMPLETED)
        return wanted.result() if wanted.done() else None
    finally:
        wanted.cancel()
        gone.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def log_place(request: Request) -> Response:
    """Where the job's output is, and whether more may come."""
    context = context_of(request)
    job = one(context, request)
    if job.is_array:
        raise Refused(
            f"job {job.label} is an array, and each of its tasks has a log",
            hint=f"name one: gjob log {job.label}_{parse_tasks(job.spec.array).first}",
        )
    path = log_path(context.settings, job)
    data = {"job_id": key_label(job.key), "path": path, "final": job.is_final}
    return answer(request, lambda: data, lambda: f"{path}\n")


async def history(request: Request) -> Response:
    """The story of a job: everything that happened to it, and who did it."""
    context = context_of(request)
    job = one(context, request)
    lines = context.store.story(job.key)
    data = {"job": key_label(job.key), "events": [line_view(line, user_name) for line in lines]}
    return answer(request, lambda: data, lambda: story_page(lines, user_name))
