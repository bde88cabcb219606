"""Routes that change jobs: cancel, signal, hold, release, update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from signal import Signals
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gflow.core.events import Cancel, Hold, Release, SendSignal, Update
from gflow.core.forecast.cancel_impact import Blocked
from gflow.core.ids import JobKey, label
from gflow.core.model import Job, JobState
from gflow.core.queries.job_filter import EVERY_USER, matches_name
from gflow.core.state.state import PART
from gflow.daemon.api.handlers.submit import charge_texts
from gflow.daemon.api.permissions import check, may_change_others_jobs, rights_of
from gflow.daemon.api.request import (
    MOST_JOBS_BYTES,
    all_keys_of,
    caller,
    context_of,
    existing_job,
    expand_groups,
    hides_for,
    read,
    states_of,
    while_connected,
)
from gflow.daemon.api.response import answer_jobs, json_frame, json_items, wants_text
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.auth import submission_rules
from gflow.daemon.auth.users import JobOwner, user_name
from gflow.daemon.context import Context
from gflow.daemon.loop.bulk_actions import BulkAction
from gflow.daemon.loop.commands import (
    EventCommand,
    Hides,
    UpdateCommand,
    hidden_among,
    named_parents,
    resolved_fields,
)
from gflow.daemon.loop.cooperative import SLICE, in_key_order, in_slices
from gflow.errors import Refused, UsageError, no_job
from gflow.store.port import address_of
from gflow.store.rows import USUAL_BYTES
from gflow.wire.answers.jobs import DryCancelAnswer, JudgedJob, Verdict
from gflow.wire.encoding import encode, key_label
from gflow.wire.requests import (
    CancelRequest,
    HoldRequest,
    JobSelection,
    ReleaseRequest,
    SignalRequest,
    UpdateRequest,
)
from gflow.wire.update import Change, describe_update

# A row of a cancel preview: the job, its verdict, and the parents that it would lose.
Row = tuple[JobKey, Verdict, list[JobKey]]
# Final jobs looked up in the database in one slice.
TOGETHER = 100
NO_WORDS: Mapping[JobKey, str] = MappingProxyType({})


async def cancel(request: Request) -> Response:
    """Cancel jobs. A request that names an unknown job is refused as a whole."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, CancelRequest)
    keys = await _select_jobs(context, request, wanted)
    async for some in in_slices(keys):
        check(request, [existing_job(context, key) for key in some])
    over = await _final_states(context, keys)
    if wanted.dry_run:
        return await _preview_cancel(request, keys, over)
    if len(over) < len(keys):
        await _apply(
            request,
            BulkAction(
                Cancel,
                uid,
                origin,
                is_operator=may_change_others_jobs(request),
                now=wanted.now,
                user=user_name(uid),
            ),
            keys,
        )
    return await answer_jobs(
        request,
        keys,
        lambda some: (_cancel_line(context, key, over) for key in some),
        "" if keys else "No jobs match.\n",
    )


async def send_signal(request: Request) -> Response:
    """Send a signal to running jobs. It does not end them, unless they end by themselves."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, SignalRequest)
    number, may_change = wanted.number, may_change_others_jobs(request)
    name = Signals(number).name if number in set(Signals) else f"signal {number}"
    keys = await _select_jobs(context, request, wanted)
    running: set[JobKey] = set()
    async for some in in_slices(keys):
        check(request, [existing_job(context, key) for key in some])
        running.update(key for key in some if _is_running(context, key))
    if wanted.is_filtered:
        keys = [key for key in keys if key in running]
    elif not running:
        job = existing_job(context, keys[0])
        raise Refused(f"job {label(keys[0])} is not running: {job.state.value}")
    targets = sorted(running)
    for start in range(0, len(targets), PART):
        part = tuple(targets[start : start + PART])
        command = EventCommand(
            lambda at, part=part: SendSignal(  # type: ignore[misc]
                at=at,
                uid=uid,
                is_operator=may_change,
                keys=part,
                number=-number if wanted.batch else number,
                name=name,
            ),
            origin,
        )
        await context.loop.run_command(command)
    return await answer_jobs(
        request,
        keys,
        lambda some: (
            f"Job {label(key)} got {name}.\n" if key in running else f"Job {label(key)} is not running.\n"
            for key in some
        ),
        "" if keys else "No jobs match.\n",
    )


def _is_running(context: Context, key: JobKey) -> bool:
    """Whether this job runs, or a task of this array does."""
    jobs = context.loop.state.jobs
    return key in jobs.tasks or (key in jobs and jobs[key].state is JobState.RUNNING)


async def _apply(request: Request, bulk: BulkAction, keys: list[JobKey]) -> None:
    """Apply a change to the jobs: in one turn of the loop up to `PART` jobs, else in parts."""
    loop = context_of(request).loop
    if len(keys) > PART:
        await while_connected(request, loop.apply_action(bulk, keys))
    else:
        await loop.run_command(bulk.to(tuple(keys)))


async def _final_states(context: Context, keys: list[JobKey]) -> dict[JobKey, JobState]:
    """States of the final jobs among these. Looked up in slices, so that other requests can run."""
    over: dict[JobKey, JobState] = {}
    async for some in in_slices(keys, TOGETHER):
        state = context.loop.state
        over |= {key: existing_job(context, key).state for key in some if not state.jobs.is_active(key)}
    return over


async def _select_jobs(context: Context, request: Request, wanted: JobSelection) -> list[JobKey]:
    """Select the jobs to cancel or signal: the named ones, the matching ones, or the named ones that match.

    Works in slices, because pattern matching is slow; jobs may end meanwhile.
    """
    if not wanted.jobs and not wanted.is_filtered:
        raise UsageError(
            "no job is named", hint="name jobs, or select them by all, names, states, projects or users"
        )
    named = await all_keys_of(context, request, wanted.jobs) if wanted.jobs else None
    if not wanted.is_filtered:
        return named or []
    viewer = viewer_of(request)
    states = states_of(",".join(wanted.states))

    def is_selected(job: Job) -> bool:
        return viewer.sees_job(job) and _matches(job, wanted, states, viewer.caller)

    found: list[JobKey] = []
    if named is not None:
        async for keys in in_slices(named):
            found += [key for key in keys if is_selected(existing_job(context, key))]
        return found
    array = None  # the number of the latest one; its key precedes those of its tasks
    async for keys in in_key_order(context.loop.state.jobs.order):
        jobs = filter(None, map(context.loop.state.jobs.get, keys))
        for job in filter(is_selected, jobs):
            if job.is_array:
                array = job.number
            if job.is_array or job.number != array:  # a task is cancelled with its array
                found.append(job.key)
    return found


def _matches(job: Job, wanted: JobSelection, states: frozenset[JobState], owner: JobOwner) -> bool:
    if job.is_final or (not wanted.users and not wanted.jobs and not owner.owns(job)):
        return False
    return (
        (not states or job.state in states)
        and (not wanted.users or job.user in wanted.users or EVERY_USER in wanted.users)
        and (not wanted.projects or job.spec.project in wanted.projects)
        and (not wanted.names or matches_name(job.name, wanted.names))
    )


def _cancel_line(context: Context, key: JobKey, over: dict[JobKey, JobState]) -> str:
    if key in over:
        return f"Job {label(key)} is already {over[key].value}.\n"
    if key in context.loop.state.jobs:
        return f"Job {label(key)} is being stopped.\n"
    return f"Job {label(key)} cancelled.\n"


async def _preview_cancel(request: Request, keys: list[JobKey], over: dict[JobKey, JobState]) -> Response:
    """Preview a cancel: its effect on these jobs, and on jobs that depend on them."""
    context, viewer = context_of(request), viewer_of(request)
    blocked = Blocked(context.loop.state, [key for key in keys if key not in over])
    while blocked.search(SLICE):
        await asyncio.sleep(0)
    rows: list[Row] = [(key, "invalid" if key in over else "ok", []) for key in keys]
    rows += [
        (key, "blocked", parents)
        for key, parents in blocked.found().items()
        if viewer.sees_job(existing_job(context, key))
    ]
    if wants_text(request):
        return StreamingResponse(_preview_text(context, rows), media_type="text/plain; charset=utf-8")
    return StreamingResponse(_preview_json(context, viewer, rows), media_type="application/json")


async def _preview_text(context: Context, rows: list[Row]) -> AsyncIterator[str]:
    async for some in in_slices(rows):
        yield "".join(
            "\t".join([label(key), existing_job(context, key).state.value, verdict, *_parent_column(parents)])
            + "\n"
            for key, verdict, parents in some
        )
    if not rows:
        yield "No jobs match.\n"


async def _preview_json(context: Context, viewer: Viewer, rows: list[Row]) -> AsyncIterator[str]:
    head, end = json_frame(DryCancelAnswer(dry_run=True, jobs=[], total=len(rows)))
    comma = ""
    yield head
    async for some in in_slices(rows):
        yield comma + json_items(
            [_judged(viewer.redact_job(existing_job(context, row[0])), row) for row in some]
        )
        comma = ","
    yield end


def _judged(job: Job, row: Row) -> JudgedJob:
    key, verdict, parents = row
    return JudgedJob(
        id=key_label(key),
        state=job.state.value,
        verdict=verdict,
        parents=[key_label(parent) for parent in parents],
        name=job.name,
        user=job.user,
    )


def _parent_column(parents: list[JobKey]) -> list[str]:
    return [",".join(map(label, parents))] if parents else []


async def hold(request: Request) -> Response:
    """Hold waiting jobs: they do not start until they are released."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, HoldRequest)
    keys = await all_keys_of(context, request, wanted.jobs)
    bulk = BulkAction(Hold, uid, origin, is_operator=may_change_others_jobs(request))
    others = await _apply_to_waiting(request, bulk, keys)
    return await _answer_changed(request, keys, "held", others)


async def release(request: Request) -> Response:
    """Release held jobs, optionally not before a given time."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, ReleaseRequest)
    keys = await all_keys_of(context, request, wanted.jobs)
    begin_at, not_held = wanted.begin_time(), dict[JobKey, str]()
    if begin_at is None:
        async for some in in_slices(keys):
            jobs = context.loop.state.jobs
            found = (key for key in some if key in jobs and jobs[key].state is not JobState.HOLD)
            not_held |= dict.fromkeys(found, "was not held")
    bulk = BulkAction(Release, uid, origin, is_operator=may_change_others_jobs(request), begin_at=begin_at)
    others = await _apply_to_waiting(request, bulk, keys)
    return await _answer_changed(request, keys, "released", not_held | others)


async def update(request: Request) -> Response:
    """Change options of active jobs."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, UpdateRequest, MOST_JOBS_BYTES)
    keys = await _active_keys(context, request, wanted.jobs)
    change = describe_update(
        wanted, address_of, submission_rules.defaults(context.settings.config), context.settings.shapes
    )
    change.references = await expand_groups(request, change.references)
    is_operator = may_change_others_jobs(request)
    charge_texts(context, uid, change.blobs)
    await _charge_fields(context, uid, change, keys)
    hides, rights = hides_for(request), rights_of(request)
    if len(keys) > PART:
        rights.check(change.fields)
        bulk = _bulk_update(context, uid, change, origin, keys, hides, is_operator=is_operator)
        await _apply(request, bulk, keys)
    else:
        command = UpdateCommand(
            uid, tuple(keys), change, origin, is_operator=is_operator, hides=hides, rights=rights
        )
        await context.loop.run_command(command)
    return await _answer_changed(request, keys, "updated")


async def _charge_fields(context: Context, uid: int, change: Change, keys: list[JobKey]) -> None:
    """Count the bytes that long values add to the stored specs of the jobs."""
    more = len(encode(change.fields)) - USUAL_BYTES
    if more <= 0:
        return
    rows = 0
    async for some in in_slices(keys):
        jobs = (context.loop.state.jobs.get(key) for key in some)
        rows += sum(1 + (len(job.progress.pending) if job and job.progress else 0) for job in jobs)
    context.rate_limits.count_stored(uid, more * rows)


def _bulk_update(
    context: Context,
    uid: int,
    change: Change,
    origin: str,
    keys: list[JobKey],
    hides: Hides | None,
    *,
    is_operator: bool,
) -> BulkAction:
    """The bulk update of many jobs. References and a new group are resolved once, for all of them."""
    state, group = context.loop.state, 0
    fields = resolved_fields(state, uid, change)
    for key in hidden_among(named_parents(fields), hides):
        raise no_job(label(key), " to depend on")
    if fields.get("max_concurrent"):
        jobs = (state.jobs[key] for key in keys if key in state.jobs)
        group = min((job.number for job in jobs if not job.spec.group), default=0)
    return BulkAction(
        Update,
        uid,
        origin,
        is_operator=is_operator,
        blobs=change.blobs,
        fields=fields,
        extend_s=change.extend_s,
        group=group,
    )


async def _active_keys(context: Context, request: Request, texts: list[str]) -> list[JobKey]:
    """Resolve selectors to active jobs that the caller may change. Raises if one is final."""
    keys = await all_keys_of(context, request, texts)
    async for some in in_slices(keys):
        jobs = [existing_job(context, key) for key in some]
        check(request, jobs)
        for job in jobs:
            if job.is_final:
                raise _over(job)
    return keys


def _over(job: Job) -> Refused:
    """The error for a job that has ended."""
    return Refused(f"job {job.label} is over: {job.state.value}", hint=f"gjob redo {job.label} does it again")


async def _not_waiting(request: Request, keys: list[JobKey]) -> dict[JobKey, str]:
    """Of jobs that the caller may change, those that run or have ended, with their state in words.

    Raises if there are several jobs and none waits, or if the only one has ended. The engine refuses a single
    job that runs.
    """
    context, found, runs = context_of(request), dict[JobKey, str](), 0
    async for some in in_slices(keys, TOGETHER):
        jobs = [existing_job(context, key) for key in some]
        check(request, jobs)
        for job in jobs:
            if job.is_final:
                found[job.key] = f"is already {job.state.value}"
            elif job.state is JobState.RUNNING and len(keys) > 1:
                found[job.key] = "is running"
                runs += 1
    if len(keys) == 1 and found:
        raise _over(existing_job(context, keys[0]))
    if len(found) == len(keys):
        raise Refused(f"none of these jobs waits: {runs} run, {len(keys) - runs} have ended")
    return found


async def _apply_to_waiting(request: Request, bulk: BulkAction, keys: list[JobKey]) -> dict[JobKey, str]:
    """Apply a change to those of several jobs that wait; return the others (`_not_waiting`)."""
    others = await _not_waiting(request, keys)
    while True:
        try:
            await _apply(request, bulk, [key for key in keys if key not in others])
        except Refused:
            before, others = others, await _not_waiting(request, keys)
            if others == before:
                raise
        else:
            return others


async def _answer_changed(
    request: Request, keys: list[JobKey], how: str, unless: Mapping[JobKey, str] = NO_WORDS
) -> Response:
    """Answer with these jobs. `unless`: words for those that were not changed."""
    return await answer_jobs(
        request,
        keys,
        lambda some: (f"Job {label(key)} {unless.get(key, how)}.\n" for key in some),
    )
