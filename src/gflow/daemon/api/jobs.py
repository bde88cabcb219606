"""Routes about jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.engine import resolve
from gflow.core.events import Cancel
from gflow.core.explain import explain
from gflow.core.ids import JobKey, label
from gflow.core.model import SHORT, Job, JobState
from gflow.daemon.api.answers import answer
from gflow.daemon.api.people import user_name
from gflow.daemon.context import Context
from gflow.daemon.loop import Submitting
from gflow.daemon.perform import log_path
from gflow.errors import NotFound, UsageError
from gflow.store.port import address_of
from gflow.text.pages import job_page
from gflow.text.queue import Entry, columns_of, queue_table
from gflow.wire.requests import BATCH, CancelRequest, SubmitRequest, decode, describe
from gflow.wire.views import job_view, key_label


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def uid_of(request: Request) -> int:
    uid: int = request.scope["state"]["uid"]
    return uid


async def submit(request: Request) -> Response:
    """Take jobs; the answer comes when they are durable."""
    wanted: SubmitRequest = decode(await request.body(), SubmitRequest)
    if not 1 <= len(wanted.jobs) <= BATCH:
        raise UsageError(f"a submission holds 1 to {BATCH} jobs, not {len(wanted.jobs)}")
    if not 8 <= len(wanted.token) <= 200:
        raise UsageError("the token of a submission must be 8 to 200 characters")
    described = [describe(job, address_of) for job in wanted.jobs]
    context, uid = context_of(request), uid_of(request)
    keys = await context.loop.submit(
        Submitting(
            uid=uid,
            user=user_name(uid),
            token=wanted.token,
            specs=tuple(job.spec for job in described),
            references=tuple(job.references for job in described),
            blobs={address: text for job in described for address, text in job.blobs.items()},
        )
    )

    def text() -> str:
        if "parsable" in request.query_params:
            return "".join(f"{label(key)}\n" for key in keys)
        named = "named" in request.query_params
        names = [f" ({job.name})" if job and named else "" for job in map(context.job, keys)]
        return "".join(map("Submitted batch job {}{}\n".format, map(label, keys), names))

    return answer(request, lambda: _listing(_entries(context, map(context.job, keys))), text, 201)


async def listing(request: Request) -> Response:
    """The queue: active jobs, or all of them, filtered."""
    context = context_of(request)
    query = request.query_params
    names = columns_of(query.get("format", ""))
    states = _states(query.get("states", ""))
    wanted = _keys(context, uid_of(request), query["jobs"].split(",")) if query.get("jobs") else None
    if wanted is not None:
        found = [job for job in map(context.job, wanted) if job is not None]
    else:
        active = not query.get("all") and not (states - {JobState.QUEUED, JobState.HOLD, JobState.RUNNING})
        found = list(context.store.jobs(active=active))
    users = {name for name in query.get("users", "").split(",") if name}
    chosen = [
        job for job in found if (not states or job.state in states) and (not users or job.user in users)
    ]
    entries = _entries(context, chosen)
    return answer(request, lambda: _listing(entries), lambda: queue_table(entries, names, time.time()))


async def show(request: Request) -> Response:
    """One job."""
    context = context_of(request)
    job = _one(context, uid_of(request), request.path_params["job"])
    entries = _entries(context, [job])
    why = entries[0][1]
    return answer(
        request,
        lambda: _listing(entries),
        lambda: job_page(job, why, time.time(), log_path(context.settings, job)),
    )


async def wait(request: Request) -> Response:
    """Answers when the job is final."""
    context = context_of(request)
    key = _key(context, uid_of(request), request.path_params["job"])
    job = await context.loop.ended(key)
    if job is None:
        raise NotFound(f"there is no job {label(key)}")
    return answer(request, lambda: _listing([(job, None)]), lambda: f"{job.label} {job.state.value}\n")


async def log_place(request: Request) -> Response:
    """Where the job's output is, and whether more may come."""
    context = context_of(request)
    job = _one(context, uid_of(request), request.path_params["job"])
    path = log_path(context.settings, job)
    data = {"job_id": key_label(job.key), "path": path, "final": job.is_final}
    return answer(request, lambda: data, lambda: f"{path}\n")


async def cancel(request: Request) -> Response:
    """Cancel jobs. Unknown ones are refused before anything happens."""
    context = context_of(request)
    wanted: CancelRequest = decode(await request.body(), CancelRequest)
    uid = uid_of(request)
    keys = _keys(context, uid, wanted.jobs)
    over = {key for key in keys if _known(context, key).is_final}
    await context.loop.ask(lambda at: Cancel(at=at, uid=uid, keys=tuple(keys), now=wanted.now))
    after = [_known(context, key) for key in keys]

    def text() -> str:
        return "".join(_cancelled(job, job.key in over) for job in after)

    return answer(request, lambda: _listing(_entries(context, after)), text)


def _cancelled(job: Job, was_over: bool) -> str:
    if was_over:
        return f"Job {job.label} is already {job.state.value}.\n"
    if job.stopping:
        return f"Job {job.label} is being stopped.\n"
    return f"Job {job.label} cancelled.\n"


# ---------------------------------------------------------------- helpers


def _listing(entries: list[Entry]) -> dict[str, object]:
    return {"jobs": [job_view(job, why) for job, why in entries], "total": len(entries)}


def _entries(context: Context, jobs: Iterable[Job | None]) -> list[Entry]:
    """Jobs with the reason why each waits."""
    state = context.loop.state
    return [(job, explain(state, job)) for job in jobs if job is not None]


def _keys(context: Context, uid: int, texts: list[str]) -> list[JobKey]:
    return list(dict.fromkeys(_key(context, uid, text.strip()) for text in texts))


def _key(context: Context, uid: int, text: str) -> JobKey:
    return resolve(context.loop.state, uid, text)


def _known(context: Context, key: JobKey) -> Job:
    job = context.job(key)
    if job is None:
        raise NotFound(f"there is no job {label(key)}")
    return job


def _one(context: Context, uid: int, text: str) -> Job:
    return _known(context, _key(context, uid, text))


_STATE_NAMES = {state.value.lower(): state for state in JobState} | {
    short.lower(): state for state, short in SHORT.items()
}


def _states(text: str) -> set[JobState]:
    states = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        state = _STATE_NAMES.get(name.lower())
        if state is None:
            raise UsageError(
                f"unknown state {name!r}", hint="states: " + ", ".join(s.value for s in JobState)
            )
        states.add(state)
    return states
