"""Routes about jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.events import Cancel, Hold, Release
from gflow.core.ids import label
from gflow.core.model import Job
from gflow.core.tasks import parse_tasks
from gflow.daemon import rules
from gflow.daemon.api.answers import answer
from gflow.daemon.api.asking import caller, context_of, keys_of, known, one
from gflow.daemon.api.limits import limits_of
from gflow.daemon.api.people import user_name
from gflow.daemon.perform import log_path
from gflow.daemon.wishes import Submitting, Updating
from gflow.errors import NotFound, Refused, UsageError
from gflow.store.port import address_of
from gflow.text.pages import job_page, story_page
from gflow.wire.requests import (
    BATCH,
    CancelRequest,
    HoldRequest,
    Reader,
    ReleaseRequest,
    SubmitRequest,
    UpdateRequest,
    decode,
    describe_update,
)
from gflow.wire.views import jobs_view, key_label, line_view

# ---------------------------------------------------------------- submit


async def submit(request: Request) -> Response:
    """Take jobs; the answer comes when they are durable."""
    wanted: SubmitRequest = decode(await request.body(), SubmitRequest)
    if not 1 <= len(wanted.jobs) <= BATCH:
        raise UsageError(f"a submission holds 1 to {BATCH} jobs, not {len(wanted.jobs)}")
    if not 8 <= len(wanted.token) <= 200:
        raise UsageError("the token of a submission must be 8 to 200 characters")
    context, (uid, origin) = context_of(request), caller(request)
    config = context.settings.config
    reader = Reader(address_of, limits_of(request.scope["state"]["pid"]), rules.defaults(config))
    for job in wanted.jobs:
        job.environ = job.environ or wanted.environ
    described = [reader.read(job) for job in wanted.jobs]
    for project in {job.spec.project for job in described}:
        rules.check_project(config, project)
    keys = await context.loop.submit(Submitting(uid, user_name(uid), wanted.token, described, origin))

    def text() -> str:
        if "parsable" in request.query_params:
            return "".join(f"{label(key)}\n" for key in keys)
        named = "named" in request.query_params
        names = (
            [f" ({job.name})" if job else "" for job in map(context.job, keys)] if named else [""] * len(keys)
        )
        return "".join(map("Submitted batch job {}{}\n".format, map(label, keys), names))

    return answer(request, lambda: jobs_view(context.entries(map(context.job, keys))), text, 201)


# ---------------------------------------------------------------- look


async def show(request: Request) -> Response:
    """One job; an array with its tasks."""
    context = context_of(request)
    job = one(context, request)
    tasks = list(context.store.tasks(job.key)) if job.is_array else []
    entries = context.entries([job, *tasks])
    why = entries[0][1]
    return answer(
        request,
        lambda: jobs_view(entries),
        lambda: job_page(job, why, time.time(), log_path(context.settings, job)),
    )


async def wait(request: Request) -> Response:
    """Answers when the job is final."""
    context = context_of(request)
    (key,) = keys_of(context, request, [request.path_params["job"]])
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


# ---------------------------------------------------------------- change


async def cancel(request: Request) -> Response:
    """Cancel jobs. Unknown ones are refused before anything happens."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted: CancelRequest = decode(await request.body(), CancelRequest)
    keys = keys_of(context, request, wanted.jobs)
    over = {key for key in keys if known(context, key).is_final}
    await context.loop.ask(lambda at: Cancel(at=at, uid=uid, keys=tuple(keys), now=wanted.now), origin)
    after = [known(context, key) for key in keys]
    return answer(
        request,
        lambda: jobs_view(context.entries(after)),
        lambda: "".join(_cancelled(job, job.key in over) for job in after),
    )


def _cancelled(job: Job, was_over: bool) -> str:
    if was_over:
        return f"Job {job.label} is already {job.state.value}.\n"
    if job.stopping:
        return f"Job {job.label} is being stopped.\n"
    return f"Job {job.label} cancelled.\n"


async def hold(request: Request) -> Response:
    context, (uid, origin) = context_of(request), caller(request)
    wanted: HoldRequest = decode(await request.body(), HoldRequest)
    keys = keys_of(context, request, wanted.jobs)
    await context.loop.ask(lambda at: Hold(at=at, uid=uid, keys=tuple(keys)), origin)
    return _changed(request, [known(context, key) for key in keys], "held")


async def release(request: Request) -> Response:
    context, (uid, origin) = context_of(request), caller(request)
    wanted: ReleaseRequest = decode(await request.body(), ReleaseRequest)
    keys = keys_of(context, request, wanted.jobs)
    begin_at = wanted.begin_time()
    await context.loop.ask(lambda at: Release(at=at, uid=uid, keys=tuple(keys), begin_at=begin_at), origin)
    return _changed(request, [known(context, key) for key in keys], "released")


async def update(request: Request) -> Response:
    context, (uid, origin) = context_of(request), caller(request)
    wanted: UpdateRequest = decode(await request.body(), UpdateRequest)
    keys = tuple(keys_of(context, request, wanted.jobs))
    fields, references = describe_update(wanted)
    await context.loop.wish(Updating(uid, keys, fields, references, origin))
    return _changed(request, [known(context, key) for key in keys], "updated")


def _changed(request: Request, jobs: list[Job], how: str) -> Response:
    entries = context_of(request).entries(jobs)
    return answer(
        request, lambda: jobs_view(entries), lambda: "".join(f"Job {job.label} {how}.\n" for job in jobs)
    )
