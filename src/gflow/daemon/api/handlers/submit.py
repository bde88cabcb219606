"""Routes that submit jobs: new ones, and repeats of earlier ones (redo)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.ids import JobKey, label, number_of
from gflow.core.lifecycle.update import override_spec
from gflow.core.model import Spec
from gflow.core.state.state import PART
from gflow.daemon.api.expansion import Expansion, bytes_of
from gflow.daemon.api.handlers.dry_run import dry_run
from gflow.daemon.api.permissions import check, rights_of, submitting_user
from gflow.daemon.api.request import (
    MOST_JOBS_BYTES,
    all_keys_of,
    caller,
    context_of,
    existing_job,
    expand_groups,
    hides_for,
    query_of,
    read,
    while_connected,
)
from gflow.daemon.api.response import add_note, answer_jobs
from gflow.daemon.api.rlimits import limits_of
from gflow.daemon.auth import submission_rules
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import check_targets, check_with_slurm, kind_of, local_note
from gflow.daemon.execution.cluster_users import owners_home, snapshot_taker
from gflow.daemon.execution.gpu_memory_auto import auto_memory_note, resolve_auto_memory
from gflow.daemon.execution.project_files import SnapshotTaker, with_files
from gflow.daemon.loop.commands import RedoCommand, SubmitCommand
from gflow.daemon.loop.cooperative import FEW, in_slices
from gflow.daemon.notify.destinations import mail_note
from gflow.errors import Refused, UsageError
from gflow.job_states import FAILED_NAMES
from gflow.options.update import FIXED_IN_REDO
from gflow.store.port import address_of
from gflow.store.rows import kept_size
from gflow.text.submissions import group_lines, submitted_line, sweep_line
from gflow.wire.queries import SubmitQuery
from gflow.wire.requests import (
    AUTO_MIB,
    ParsedJob,
    RawSubmitRequest,
    Reader,
    RedoRequest,
)
from gflow.wire.update import describe_options


async def submit(request: Request) -> Response:
    """Submit jobs. The answer comes when they are durable."""
    query, wanted = query_of(request, SubmitQuery), await read(request, RawSubmitRequest, MOST_JOBS_BYTES)
    context, (uid, origin) = context_of(request), caller(request)
    config, user = context.settings.config, submitting_user(request)
    state, is_system = request.scope["state"], context.settings.is_system
    limits = limits_of(state, context.privileged, is_required=is_system)
    reader = Reader(address_of, limits, submission_rules.defaults(config), context.settings.shapes)
    _check_token(wanted.token)
    hides, rights = hides_for(request), rights_of(request)
    command = SubmitCommand(uid, user, wanted.token, [], origin, hides=hides, rights=rights)
    takes = None if query.dry_run else snapshot_taker(context, uid)
    expansion = Expansion(request, wanted, reader, rights, takes)
    if takes is None:
        return await dry_run(request, command, expansion, wants_start=query.start)
    # One job of each kind that may need a note, or that a cluster may reject.
    kinds: dict[tuple[object, ...], ParsedJob] = {}
    texts, sizes = set[str](), [0]
    with context.rate_limits.count_held(uid) as hold:

        def take(described: list[ParsedJob]) -> None:
            hold(sum(map(bytes_of, described)))
            for job in described:
                kinds.setdefault(kind_of(job.spec), job)
                new = {name: text for name, text in job.blobs.items() if name not in texts}
                texts.update(new)
                sizes[0] += new_bytes(context, new) + kept_size(job.spec)
            command.add(described)

        await expansion.for_each(take, last=True)
        known = [job.spec for job in kinds.values()]
        note = auto_memory_note(known) or local_note(known)
        note = note or await check_with_slurm(context.settings, context.target, uid, list(kinds.values()))
        notes = (note, takes.note, mail_note(context.settings.destinations, known))
        note = "; ".join(filter(None, notes))
        context.rate_limits.count_stored(uid, sizes[0])
        submission = context.loop.submit(command)
        keys = await (while_connected(request, submission) if command.count > PART else submission)
        return add_note(await _answer_submitted(request, query, keys), note)


def charge_texts(context: Context, uid: int, blobs: dict[str, bytes]) -> None:
    """Count the stored bytes of new texts. Raises TooMany above the user's limit."""
    context.rate_limits.count_stored(uid, new_bytes(context, blobs))


def charge_specs(context: Context, uid: int, specs: Iterable[Spec]) -> None:
    """Count the stored bytes of specs that are longer than usual. Specs are not shared between jobs."""
    context.rate_limits.count_stored(uid, sum(map(kept_size, specs)))


def new_bytes(context: Context, blobs: dict[str, bytes]) -> int:
    """Bytes of the texts that the store does not have yet; 0 in user mode, which has no limit."""
    if not blobs or not context.settings.is_system:
        return 0
    return sum(len(text) for name, text in blobs.items() if not context.store.has_blob(name))


async def redo(request: Request) -> Response:
    """Submit jobs again, as new jobs."""
    query, wanted = query_of(request, SubmitQuery), await read(request, RedoRequest)
    _check_token(wanted.token)
    context, (uid, origin) = context_of(request), caller(request)
    user = submitting_user(request)
    redone = await _keys_to_redo(request, wanted)
    job = existing_job(context, redone[0])
    settings = context.settings
    change = describe_options(
        wanted.options, FIXED_IN_REDO, submission_rules.defaults(settings.config), settings.shapes
    )
    change.references = await expand_groups(request, change.references)
    if change.fields.get("on") or change.fields.get("overflow"):
        check_targets(context.settings, [override_spec(job, job.spec, change.fields)])
    note = ""
    if change.fields.get("gpu_memory_mib") == AUTO_MIB:
        (spec,) = await resolve_auto_memory(context, uid, [override_spec(job, job.spec, change.fields)])
        change.fields |= {"gpu_memory_mib": spec.gpu_memory_mib, "gpu_memory_from": spec.gpu_memory_from}
        note = auto_memory_note([spec])
    takes = await _take_snapshots(context, uid, redone, change.fields)
    command = RedoCommand(
        uid,
        user,
        wanted.token,
        redone,
        change,
        clear_deps=wanted.clear_deps,
        cascade=wanted.cascade,
        by_group="g" in wanted.job,
        origin=origin,
        hides=hides_for(request),
        rights=rights_of(request),
        keep=partial(charge_specs, context, uid),
        files=lambda spec: takes.known(with_files(settings, spec, owners_home(settings, uid))),
    )
    with context.rate_limits.count_held(uid) as hold:
        if len(redone) > PART:
            await while_connected(request, _stage_redo(context, command, redone, hold))
        submission = context.loop.submit(command)
        keys = await (while_connected(request, submission) if len(redone) > PART else submission)
    notes = "; ".join(filter(None, (note, takes.note, command.note)))
    return add_note(await _answer_submitted(request, query, keys), notes)


async def _take_snapshots(
    context: Context, uid: int, keys: Sequence[JobKey], fields: dict[str, Any]
) -> SnapshotTaker:
    """Take snapshots of the files of redone jobs, as these are now."""
    if "no_sync" in fields or "sync" in fields:  # the job has one of them from its target
        fields |= {"sync": "", "no_sync": False} | fields
    takes, home = snapshot_taker(context, uid), owners_home(context.settings, uid)
    wanted = {name: value for name, value in fields.items() if name in FILE_FIELDS}
    async for some in in_slices(keys, FEW):
        for key in some:
            spec = msgspec.structs.replace(existing_job(context, key).spec, **wanted)
            await takes.attach(with_files(context.settings, spec, home))
    return takes


# Fields on which the snapshot of a job depends.
FILE_FIELDS = frozenset({"on", "overflow", "sync", "no_sync", "sync_size_mib", "outputs"})


async def _keys_to_redo(request: Request, wanted: RedoRequest) -> list[JobKey]:
    """The jobs that the request names, in slices. Raises Refused if none of them failed."""
    context, keys = context_of(request), list[JobKey]()
    async for some in in_slices(await all_keys_of(context, request, [wanted.job]), FEW):
        jobs = [existing_job(context, key) for key in some]
        if wanted.failed:
            jobs = [job for job in jobs if job.state.value in FAILED_NAMES]
        check(request, jobs)
        keys += [job.key for job in jobs]
    if not keys:
        raise Refused("none of these jobs ended as Failed or Timeout", hint="leave --failed out to redo all")
    return keys


async def _stage_redo(
    context: Context, command: RedoCommand, keys: Sequence[JobKey], hold: Callable[[int], None]
) -> None:
    """Add the jobs to a submission in parts."""
    async with context.rate_limits.expansion_turn(command.uid):
        async for some in in_slices(keys, FEW):
            command.stage(context.loop.state, context.store, [existing_job(context, key) for key in some])
            hold(sum(map(bytes_of, command.jobs[-len(some) :])))


def _check_token(token: str) -> None:
    if not 8 <= len(token) <= 200:
        raise UsageError("the token of a submission must be 8 to 200 characters")


async def _answer_submitted(request: Request, query: SubmitQuery, keys: Sequence[JobKey]) -> Response:
    context = context_of(request)

    def lines(some: Iterable[JobKey]) -> Iterator[str]:
        for key in some:
            job = context.job(key) if query.named and not query.parsable else None
            yield submitted_line(label(key), job.name if job else "", is_parsable=query.parsable)

    first = context.job(keys[0]) if len(keys) > 1 and not query.parsable else None
    last = context.job(keys[-1]) if first else None
    if query.named and first and last and 0 < first.spec.group == last.spec.group and _are_adjacent(keys):
        line = sweep_line(first.label, last.label, len(keys), first.spec.group)
        return await answer_jobs(request, keys, lambda some: (), line, 201)
    end = group_lines(len(keys), first.spec.group) if first else ""
    return await answer_jobs(request, keys, lines, end, 201)


def _are_adjacent(keys: Sequence[JobKey]) -> bool:
    return number_of(keys[-1]) - number_of(keys[0]) == len(keys) - 1
