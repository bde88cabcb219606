"""Routes that take jobs: new ones, and old ones again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gflow.core.admission import admitted_part, check_number, check_owner, check_quotas
from gflow.core.ids import JobKey, label
from gflow.core.model import Spec
from gflow.core.quotas import PROJECT, USER
from gflow.core.state import PART, State
from gflow.core.submissions import Judgements
from gflow.core.updating import overridden
from gflow.daemon import rules
from gflow.daemon.abroad import check_targets, kind_of, local_note, scripts_of, tried, with_patience
from gflow.daemon.api.answers import noted, wants_text
from gflow.daemon.api.asking import (
    MOST_COMMANDS,
    MOST_JOBS_BYTES,
    caller,
    context_of,
    hides_for,
    known,
    one_key,
    query_of,
    read,
)
from gflow.daemon.api.many import about
from gflow.daemon.api.permissions import acting_user, check, rights_of
from gflow.daemon.api.rlimits import limits_of
from gflow.daemon.bulk import Taking
from gflow.daemon.context import Context
from gflow.daemon.needs import note_of, settled
from gflow.daemon.redoing import Redoing
from gflow.daemon.slices import FEW, consumed, in_slices
from gflow.daemon.wishes import Submitting
from gflow.errors import UsageError, clean_page
from gflow.options.changing import FIXED_IN_REDO
from gflow.store.port import address_of
from gflow.store.rows import kept_size
from gflow.text.submissions import dry_run_page, group_lines, submitted_line
from gflow.wire.changes import describe_options
from gflow.wire.queries import SubmitQuery
from gflow.wire.requests import (
    AUTO_MIB,
    BATCH,
    Described,
    RawSubmitRequest,
    Reader,
    RedoRequest,
    decode_job,
)
from gflow.wire.views import dry_run_jobs, encode


async def submit(request: Request) -> Response:
    """Take jobs; the answer comes when they are durable."""
    query, wanted = query_of(request, SubmitQuery), await read(request, RawSubmitRequest, MOST_JOBS_BYTES)
    context, (uid, origin) = context_of(request), caller(request)
    config, user = context.settings.config, acting_user(request)
    limits = limits_of(request.scope["state"], strictly=context.settings.is_system)
    reader = Reader(address_of, limits, rules.defaults(config), context.settings.shapes)
    _check_token(wanted.token)
    hides, rights = hides_for(request), rights_of(request)
    wish = Submitting(uid, user, wanted.token, [], origin, hides=hides, rights=rights)
    # One job of each kind that may be worth a note, or that a cluster may judge differently.
    kinds: dict[tuple[object, ...], Described] = {}
    texts, size = set[str](), 0
    async for described in in_slices(read_submission(wanted, reader), FEW):
        specs = await settled(context, uid, [job.spec for job in described])
        check_targets(context.settings, specs)
        rights.check_specs(specs)  # before its quotas: those of a project are for its members to know
        for job, spec in zip(described, specs, strict=True):
            job.spec = with_patience(context.settings, spec)
            kinds.setdefault(kind_of(spec), job)
            new = {name: text for name, text in job.blobs.items() if name not in texts}
            texts |= new.keys()
            size += new_bytes(context, new) + kept_size(job.spec)
        wish.add(described)
    known = [job.spec for job in kinds.values()]
    note = note_of(known) or local_note(known)
    if query.dry_run:
        return await _dry_run(request, context, wish, note)
    note = note or await tried(context.settings, context.target, list(kinds.values()))
    context.fairness.keep(uid, size)
    return noted(await _taken(request, query, await context.loop.submit(wish)), note)


def keep_texts(context: Context, uid: int, blobs: dict[str, bytes]) -> None:
    """Count what these texts add to the disk; refuse them where one person's would be too many."""
    context.fairness.keep(uid, new_bytes(context, blobs))


def keep_specs(context: Context, uid: int, specs: Iterable[Spec]) -> None:
    """The same for specs that are longer than usual; those of jobs are not shared."""
    context.fairness.keep(uid, sum(map(kept_size, specs)))


def new_bytes(context: Context, blobs: dict[str, bytes]) -> int:
    """Bytes of those texts that the store does not have; 0 where nobody's texts are bounded."""
    if not blobs or not context.settings.is_system:
        return 0
    return sum(len(text) for name, text in blobs.items() if not context.store.has_blob(name))


def read_submission(wanted: RawSubmitRequest, reader: Reader) -> Iterator[Described]:
    """The jobs of a submission one by one, sweeps expanded."""
    if not 1 <= len(wanted.jobs) <= BATCH:
        raise UsageError(f"a submission holds 1 to {BATCH} jobs, not {len(wanted.jobs)}")
    count = size = 0
    for number, raw in enumerate(consumed(wanted.jobs)):
        job = decode_job(raw, number)
        job.environ = job.environ or wanted.environ
        for one in reader.read_all(job):
            count += 1
            size += sum(map(len, one.spec.command))
            if count > BATCH or size > MOST_COMMANDS:
                raise UsageError(
                    f"a submission holds at most {BATCH:,} jobs, with {MOST_COMMANDS >> 20} MiB of commands",
                    hint="sweeps count with all that they become; an array counts once",
                )
            yield one


async def redo(request: Request) -> Response:
    """Do a job again as a new one."""
    query, wanted = query_of(request, SubmitQuery), await read(request, RedoRequest)
    _check_token(wanted.token)
    context, (uid, origin) = context_of(request), caller(request)
    user = acting_user(request)
    key = one_key(context, request, wanted.job)
    job = known(context, key)
    check(request, [job])
    settings = context.settings
    change = describe_options(wanted.options, FIXED_IN_REDO, rules.defaults(settings.config), settings.shapes)
    if change.fields.get("on") or change.fields.get("overflow"):
        check_targets(context.settings, [overridden(job, job.spec, change.fields)])
    note = ""
    if change.fields.get("gpu_memory_mib") == AUTO_MIB:
        (spec,) = await settled(context, uid, [overridden(job, job.spec, change.fields)])
        change.fields |= {"gpu_memory_mib": spec.gpu_memory_mib, "gpu_memory_from": spec.gpu_memory_from}
        note = note_of([spec])
    wish = Redoing(
        uid,
        user,
        wanted.token,
        key,
        change,
        clear_deps=wanted.clear_deps,
        cascade=wanted.cascade,
        origin=origin,
        hides=hides_for(request),
        rights=rights_of(request),
        keep=partial(keep_specs, context, uid),
    )
    keys = await context.loop.submit(wish)
    return noted(await _taken(request, query, keys), "; ".join(filter(None, (note, wish.note))))


def _check_token(token: str) -> None:
    if not 8 <= len(token) <= 200:
        raise UsageError("the token of a submission must be 8 to 200 characters")


async def _dry_run(request: Request, context: Context, wish: Submitting, note: str) -> Response:
    """Judge a submission as if it came now, and leave it at that; each part by itself, and their number."""
    specs: list[Spec] = []
    scripts: list[str] = []
    known: Judgements = {}
    taking, number = Taking(wish), context.loop.state.next_number
    taking.resolve(context.loop.state)
    _check_count(context.loop.state, taking)
    while part := taking.next_part():
        state = context.loop.state
        made = taking.specs(part, state)
        outcomes = taking.outcomes(state, context.store, made)
        admitted_part(state, wish.uid, made, outcomes, taking.hidden(made), known, known)
        scripts += scripts_of(context.settings, context.target, number + len(specs), part)
        specs += made
        if len(part) == PART:
            await asyncio.sleep(0)
    if wants_text(request):
        page = dry_run_page(specs) + (f"{note}\n" if note else "") + "".join(scripts)
        return Response(clean_page(page), media_type="text/plain; charset=utf-8")
    return StreamingResponse(_dry_run_json(specs, scripts), media_type="application/json")


def _check_count(state: State, taking: Taking) -> None:
    check_owner(state, taking.uid)
    check_number(state, taking.uid, taking.count)
    wanted = Counter({(PROJECT, name): count for name, count in taking.projects.items()})
    wanted[USER, taking.user] = taking.count
    check_quotas(state, wanted)


async def _dry_run_json(specs: list[Spec], scripts: list[str]) -> AsyncIterator[str]:
    yield '{"dry_run":true,"jobs":['
    comma = ""
    async for some in in_slices(specs):
        yield comma + encode(dry_run_jobs(some)).decode()[1:-1]
        comma = ","
    yield f'],"total":{len(specs)},"scripts":{encode(scripts).decode()}}}'


async def _taken(request: Request, query: SubmitQuery, keys: Sequence[JobKey]) -> Response:
    context = context_of(request)

    def lines(some: Iterable[JobKey]) -> Iterator[str]:
        for key in some:
            job = context.job(key) if query.named and not query.parsable else None
            yield submitted_line(label(key), job.name if job else "", is_parsable=query.parsable)

    first = context.job(keys[0]) if len(keys) > 1 and not query.parsable else None
    end = group_lines(len(keys), first.spec.group) if first else ""
    return await about(request, keys, lines, end, 201)
