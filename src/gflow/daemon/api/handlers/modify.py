"""Routes that change jobs: cancel, hold, release, update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gflow.core.events import Cancel, Hold, Release, Update
from gflow.core.forecast.cancel_impact import Blocked
from gflow.core.ids import JobKey, job_key, label, number_of, task_of
from gflow.core.model import Job, JobState
from gflow.core.state.state import PART
from gflow.daemon.api.handlers.submit import keep_texts
from gflow.daemon.api.permissions import check, governs_others, rights_of
from gflow.daemon.api.request import (
    MOST_JOBS_BYTES,
    all_keys_of,
    caller,
    context_of,
    hides_for,
    known,
    read,
    states_of,
    while_connected,
)
from gflow.daemon.api.response import about, wants_text
from gflow.daemon.api.visibility import viewer
from gflow.daemon.auth import submission_rules
from gflow.daemon.auth.users import Person
from gflow.daemon.context import Context
from gflow.daemon.loop.bulk import Wanted
from gflow.daemon.loop.commands import Hides, Updating, hidden_among, resolved_fields
from gflow.daemon.loop.cooperative import RUN, SLICE, in_slices
from gflow.errors import NotFound, Refused, UsageError
from gflow.store.port import address_of
from gflow.store.rows import USUAL_BYTES
from gflow.wire.requests import CancelRequest, HoldRequest, ReleaseRequest, UpdateRequest
from gflow.wire.update import Change, describe_update
from gflow.wire.views import encode, key_label

# A job, what a cancel would mean for it, and the parents that it would lose.
Row = tuple[JobKey, str, list[JobKey]]
# Jobs looked up in one go.
TOGETHER = 100


async def cancel(request: Request) -> Response:
    """Cancel jobs. Unknown ones are refused before anything happens."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, CancelRequest)
    keys = await _wanted(context, request, wanted)
    async for some in in_slices(keys):
        check(request, [known(context, key) for key in some])
    over = await _ended(context, keys)
    if wanted.dry_run:
        return await _foretold(request, keys, over)
    if len(over) < len(keys):
        await _do(request, Wanted(Cancel, uid, origin, governs=governs_others(request), now=wanted.now), keys)
    return await about(
        request,
        keys,
        lambda some: (_cancelled(context, key, over) for key in some),
        "" if keys else "No jobs match.\n",
    )


async def _do(request: Request, deed: Wanted, keys: list[JobKey]) -> None:
    """Do this to the jobs: in one turn if they are few."""
    loop = context_of(request).loop
    if len(keys) > PART:
        await while_connected(request, loop.do(deed, keys))
    else:
        await loop.wish(deed.to(tuple(keys)))


async def _ended(context: Context, keys: list[JobKey]) -> dict[JobKey, JobState]:
    """Those of the jobs that are over, and how. Looked up a few at a time: others want something too."""
    over: dict[JobKey, JobState] = {}
    async for some in in_slices(keys, TOGETHER):
        state = context.loop.state
        over |= {key: known(context, key).state for key in some if not state.is_active(key)}
    return over


async def _wanted(context: Context, request: Request, wanted: CancelRequest) -> list[JobKey]:
    """The jobs that are named, or those that match; with both, those of the named that match.

    A few at a time: patterns take their time, and jobs may end meanwhile.
    """
    if not wanted.jobs and not wanted.is_filtered:
        raise UsageError("which jobs?", hint="name some, or say which: all, names, states, projects, users")
    named = await all_keys_of(context, request, wanted.jobs) if wanted.jobs else None
    if not wanted.is_filtered:
        return named or []
    looks = viewer(request)
    states = states_of(",".join(wanted.states))
    found: list[JobKey] = []
    among = list(context.loop.state.jobs) if named is None else named
    async for keys in in_slices(among):
        jobs = (known(context, key) for key in keys if named or key in context.loop.state.jobs)
        found += [job.key for job in jobs if looks.finds(job) and _matches(job, wanted, states, looks.person)]
    if named is not None:
        return found
    taken, chosen = set(found), list[JobKey]()  # a task goes with its array
    async for keys in in_slices(sorted(found), RUN):
        chosen += [key for key in keys if task_of(key) is None or job_key(number_of(key)) not in taken]
    return chosen


def _matches(job: Job, wanted: CancelRequest, states: frozenset[JobState], person: Person) -> bool:
    if job.is_final or (not wanted.users and not wanted.jobs and not person.owns(job)):
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


async def _foretold(request: Request, keys: list[JobKey], over: dict[JobKey, JobState]) -> Response:
    """What a cancel would do: to these jobs, and to those that wait for them."""
    context, looks = context_of(request), viewer(request)
    blocked = Blocked(context.loop.state, [key for key in keys if key not in over])
    while blocked.search(SLICE):
        await asyncio.sleep(0)
    rows: list[Row] = [(key, "invalid" if key in over else "ok", []) for key in keys]
    rows += [
        (key, "blocked", parents)
        for key, parents in blocked.found().items()
        if looks.finds(known(context, key))
    ]
    if wants_text(request):
        return StreamingResponse(_foretold_text(context, rows), media_type="text/plain; charset=utf-8")
    return StreamingResponse(_foretold_json(context, rows), media_type="application/json")


async def _foretold_text(context: Context, rows: list[Row]) -> AsyncIterator[str]:
    async for some in in_slices(rows):
        yield "".join(
            "\t".join([label(key), known(context, key).state.value, verdict, *_joined(parents)]) + "\n"
            for key, verdict, parents in some
        )
    if not rows:
        yield "No jobs match.\n"


async def _foretold_json(context: Context, rows: list[Row]) -> AsyncIterator[str]:
    comma = ""
    yield '{"dry_run":true,"jobs":['
    async for some in in_slices(rows):
        jobs = [
            {
                "id": key_label(key),
                "state": known(context, key).state.value,
                "verdict": verdict,
                "parents": [key_label(parent) for parent in parents],
            }
            for key, verdict, parents in some
        ]
        yield comma + encode(jobs).decode()[1:-1]
        comma = ","
    yield f'],"total":{len(rows)}}}'


def _joined(parents: list[JobKey]) -> list[str]:
    return [",".join(map(label, parents))] if parents else []


async def hold(request: Request) -> Response:
    """Keep waiting jobs from starting."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, HoldRequest)
    keys = await _named(context, request, wanted.jobs)
    await _do(request, Wanted(Hold, uid, origin, governs=governs_others(request)), keys)
    return await _changed(request, keys, "held")


async def release(request: Request) -> Response:
    """Let held jobs start, perhaps not before a time."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, ReleaseRequest)
    keys = await _named(context, request, wanted.jobs)
    begin_at, free = wanted.begin_time(), set[JobKey]()
    if begin_at is None:
        async for some in in_slices(keys):
            jobs = context.loop.state.jobs
            free.update(key for key in some if key in jobs and jobs[key].state is not JobState.HOLD)
    deed = Wanted(Release, uid, origin, governs=governs_others(request), begin_at=begin_at)
    await _do(request, deed, keys)
    return await _changed(request, keys, "released", free)


async def update(request: Request) -> Response:
    """Change what active jobs ask for."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, UpdateRequest, MOST_JOBS_BYTES)
    keys = await _named(context, request, wanted.jobs)
    change = describe_update(
        wanted, address_of, submission_rules.defaults(context.settings.config), context.settings.shapes
    )
    governs = governs_others(request)
    keep_texts(context, uid, change.blobs)
    await _keep_fields(context, uid, change, keys)
    hides, rights = hides_for(request), rights_of(request)
    if len(keys) > PART:
        rights.check(change.fields)
        wanted_change = _updating(context, uid, change, origin, keys, hides, governs=governs)
        await _do(request, wanted_change, keys)
    else:
        wish = Updating(uid, tuple(keys), change, origin, governs=governs, hides=hides, rights=rights)
        await context.loop.wish(wish)
    return await _changed(request, keys, "updated")


async def _keep_fields(context: Context, uid: int, change: Change, keys: list[JobKey]) -> None:
    """Count what long values add to each of the jobs' specs."""
    more = len(encode(change.fields)) - USUAL_BYTES
    if more <= 0:
        return
    rows = 0
    async for some in in_slices(keys):
        jobs = (context.loop.state.jobs.get(key) for key in some)
        rows += sum(1 + (len(job.progress.pending) if job and job.progress else 0) for job in jobs)
    context.fairness.keep(uid, more * rows)


def _updating(
    context: Context,
    uid: int,
    change: Change,
    origin: str,
    keys: list[JobKey],
    hides: Hides | None,
    *,
    governs: bool,
) -> Wanted:
    """The update of many jobs. What it says of parents, and a new group, are the same for all of them."""
    state, group = context.loop.state, 0
    fields = resolved_fields(state, uid, change)
    for key in hidden_among({*fields.get("depends_on", ()), *fields.get("depends_any", ())}, hides):
        raise NotFound(f"there is no job {label(key)} to depend on")
    if fields.get("max_concurrent"):
        jobs = (state.jobs[key] for key in keys if key in state.jobs)
        group = min((job.number for job in jobs if not job.spec.group), default=0)
    return Wanted(
        Update,
        uid,
        origin,
        governs=governs,
        blobs=change.blobs,
        fields=fields,
        extend_s=change.extend_s,
        group=group,
    )


async def _named(context: Context, request: Request, texts: list[str]) -> list[JobKey]:
    """The jobs that these texts mean, all of which are active and the caller may change."""
    keys = await all_keys_of(context, request, texts)
    async for some in in_slices(keys):
        jobs = [known(context, key) for key in some]
        check(request, jobs)
        for job in jobs:
            if job.is_final:
                raise Refused(
                    f"job {job.label} is over: {job.state.value}",
                    hint=f"gjob redo {job.label} does it again",
                )
    return keys


async def _changed(
    request: Request, keys: list[JobKey], how: str, unless: AbstractSet[JobKey] = frozenset()
) -> Response:
    """The jobs, and what happened to each; `unless`: those that were not held."""
    return await about(
        request,
        keys,
        lambda some: (f"Job {label(key)} {'was not held' if key in unless else how}.\n" for key in some),
    )
