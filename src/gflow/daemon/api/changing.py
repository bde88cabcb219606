"""Routes that change jobs: cancel, hold, release, update."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.events import Cancel, Hold, Release
from gflow.core.foresight import blocked_by
from gflow.core.ids import JobKey, job_key, label, number_of, task_of
from gflow.core.model import Job, JobState
from gflow.daemon import rules
from gflow.daemon.api.answers import answer
from gflow.daemon.api.asking import (
    MOST_JOBS_BYTES,
    caller,
    context_of,
    hides_for,
    keys_of,
    known,
    read,
    states_of,
)
from gflow.daemon.api.permissions import check, governs_others, rights_of
from gflow.daemon.api.seeing import viewer
from gflow.daemon.api.submitting import keep_texts
from gflow.daemon.context import Context
from gflow.daemon.slices import in_slices
from gflow.daemon.wishes import Updating
from gflow.errors import Refused, UsageError
from gflow.store.port import address_of
from gflow.wire.changes import describe_update
from gflow.wire.requests import CancelRequest, HoldRequest, ReleaseRequest, UpdateRequest
from gflow.wire.views import jobs_view, key_label

# Jobs looked up in one go.
TOGETHER = 100


async def cancel(request: Request) -> Response:
    """Cancel jobs. Unknown ones are refused before anything happens."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, CancelRequest)
    keys = await _wanted(context, request, wanted)
    check(request, [known(context, key) for key in keys])
    over = await _ended(context, keys)
    if wanted.dry_run:
        return _foretold(request, keys, over)
    if len(over) < len(keys):
        governs = governs_others(request)
        await context.loop.ask(
            lambda at: Cancel(at=at, uid=uid, governs=governs, keys=tuple(keys), now=wanted.now), origin
        )
    return answer(
        request,
        lambda: jobs_view(context.entries([known(context, key) for key in keys], viewer(request))),
        lambda: "".join(_cancelled(context, key, over) for key in keys) or "No jobs match.\n",
    )


async def _ended(context: Context, keys: list[JobKey]) -> dict[JobKey, JobState]:
    """Those of the jobs that are over, and how. Looked up a few at a time: others want something too."""
    over: dict[JobKey, JobState] = {}
    for key in keys:
        if not context.loop.state.is_active(key):
            over[key] = known(context, key).state
            if len(over) % TOGETHER == 0:
                await asyncio.sleep(0)
    return over


async def _wanted(context: Context, request: Request, wanted: CancelRequest) -> list[JobKey]:
    """The jobs that are named, or those that match; with both, those of the named that match.

    A few at a time: patterns take their time, and jobs may end meanwhile.
    """
    if not wanted.jobs and not wanted.is_filtered:
        raise UsageError("which jobs?", hint="name some, or say which: all, names, states, projects, users")
    named = keys_of(context, request, wanted.jobs) if wanted.jobs else None
    if not wanted.is_filtered:
        return named or []
    uid, looks = caller(request)[0], viewer(request)
    states = states_of(",".join(wanted.states))
    found: list[JobKey] = []
    among = list(context.loop.state.jobs) if named is None else named
    async for keys in in_slices(among):
        jobs = (known(context, key) for key in keys if named or key in context.loop.state.jobs)
        found += [job.key for job in jobs if looks.finds(job) and _matches(job, wanted, states, uid)]
    if named is not None:
        return found
    taken = set(found)  # a task goes with its array
    return [key for key in sorted(found) if task_of(key) is None or job_key(number_of(key)) not in taken]


def _matches(job: Job, wanted: CancelRequest, states: frozenset[JobState], uid: int) -> bool:
    if job.is_final or (not wanted.users and not wanted.jobs and job.uid != uid):
        return False
    return (
        (not states or job.state in states)
        and (not wanted.users or job.user in wanted.users)
        and (not wanted.projects or job.spec.project in wanted.projects)
        and (not wanted.names or any(fnmatchcase(job.name, pattern) for pattern in wanted.names))
    )


def _cancelled(context: Context, key: JobKey, over: dict[JobKey, JobState]) -> str:
    if key in over:
        return f"Job {label(key)} is already {over[key].value}.\n"
    if key in context.loop.state.jobs:
        return f"Job {label(key)} is being stopped.\n"
    return f"Job {label(key)} cancelled.\n"


def _foretold(request: Request, keys: list[JobKey], over: dict[JobKey, JobState]) -> Response:
    """What a cancel would do: to these jobs, and to those that wait for them."""
    context, looks = context_of(request), viewer(request)
    blocked = blocked_by(context.loop.state, [key for key in keys if key not in over])
    rows: list[tuple[JobKey, str, list[JobKey]]] = [
        (key, "invalid" if key in over else "ok", []) for key in keys
    ]
    rows += [
        (key, "blocked", parents) for key, parents in blocked.items() if looks.finds(known(context, key))
    ]

    def view() -> dict[str, object]:
        jobs = [
            {
                "id": key_label(key),
                "state": known(context, key).state.value,
                "verdict": verdict,
                "parents": [key_label(parent) for parent in parents],
            }
            for key, verdict, parents in rows
        ]
        return {"dry_run": True, "jobs": jobs, "total": len(jobs)}

    def text() -> str:
        lines = [
            "\t".join([label(key), known(context, key).state.value, verdict, *_joined(parents)])
            for key, verdict, parents in rows
        ]
        return "".join(line + "\n" for line in lines) or "No jobs match.\n"

    return answer(request, view, text)


def _joined(parents: list[JobKey]) -> list[str]:
    return [",".join(map(label, parents))] if parents else []


async def hold(request: Request) -> Response:
    """Keep waiting jobs from starting."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, HoldRequest)
    keys = _named(context, request, wanted.jobs)
    governs = governs_others(request)
    await context.loop.ask(lambda at: Hold(at=at, uid=uid, governs=governs, keys=keys), origin)
    return _changed(request, keys, "held")


async def release(request: Request) -> Response:
    """Let held jobs start, perhaps not before a time."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, ReleaseRequest)
    keys = _named(context, request, wanted.jobs)
    begin_at, governs = wanted.begin_time(), governs_others(request)
    jobs = context.loop.state.jobs
    free = frozenset(
        key for key in keys if begin_at is None and key in jobs and jobs[key].state is not JobState.HOLD
    )
    await context.loop.ask(
        lambda at: Release(at=at, uid=uid, governs=governs, keys=keys, begin_at=begin_at), origin
    )
    return _changed(request, keys, "released", free)


async def update(request: Request) -> Response:
    """Change what active jobs ask for."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, UpdateRequest, MOST_JOBS_BYTES)
    keys = _named(context, request, wanted.jobs)
    change = describe_update(
        wanted, address_of, rules.defaults(context.settings.config), context.settings.shapes
    )
    governs = governs_others(request)
    keep_texts(context, uid, change.blobs)
    wish = Updating(
        uid, keys, change, origin, governs=governs, hides=hides_for(request), rights=rights_of(request)
    )
    await context.loop.wish(wish)
    return _changed(request, keys, "updated")


def _named(context: Context, request: Request, texts: list[str]) -> tuple[JobKey, ...]:
    """The jobs that these texts mean, all of which are active and the caller may change."""
    keys = tuple(keys_of(context, request, texts))
    jobs = [known(context, key) for key in keys]
    check(request, jobs)
    for job in jobs:
        if job.is_final:
            raise Refused(
                f"job {job.label} is over: {job.state.value}", hint=f"gjob redo {job.label} does it again"
            )
    return keys


def _changed(
    request: Request, keys: tuple[JobKey, ...], how: str, unless: frozenset[JobKey] = frozenset()
) -> Response:
    """The jobs, and what happened to each; `unless`: those that were not held."""
    context = context_of(request)
    return answer(
        request,
        lambda: jobs_view(context.entries([known(context, key) for key in keys], viewer(request))),
        lambda: "".join(f"Job {label(key)} {'was not held' if key in unless else how}.\n" for key in keys),
    )
