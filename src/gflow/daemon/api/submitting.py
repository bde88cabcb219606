"""Routes that take jobs: new ones, and old ones again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.admission import admitted
from gflow.core.events import Submit
from gflow.core.ids import JobKey, label
from gflow.core.updating import overridden
from gflow.daemon import clock, rules
from gflow.daemon.abroad import check_targets, local_note, scripts_of, tried, with_patience
from gflow.daemon.api.answers import answer, noted
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
from gflow.daemon.api.permissions import acting_user, check, rights_of
from gflow.daemon.api.rlimits import limits_of
from gflow.daemon.api.seeing import viewer
from gflow.daemon.context import Context
from gflow.daemon.needs import note_of, settled
from gflow.daemon.redoing import Redoing
from gflow.daemon.wishes import Submitting
from gflow.errors import UsageError
from gflow.options.changing import FIXED_IN_REDO
from gflow.store.port import address_of
from gflow.text.submissions import dry_run_page, submitted_lines
from gflow.wire.changes import describe_options
from gflow.wire.queries import SubmitQuery
from gflow.wire.requests import AUTO_MIB, BATCH, Described, Reader, RedoRequest, SubmitRequest
from gflow.wire.views import dry_run_view, jobs_view


async def submit(request: Request) -> Response:
    """Take jobs; the answer comes when they are durable."""
    query, wanted = query_of(request, SubmitQuery), await read(request, SubmitRequest, MOST_JOBS_BYTES)
    context, (uid, origin) = context_of(request), caller(request)
    config, user = context.settings.config, acting_user(request)
    limits = limits_of(request.scope["state"], strictly=context.settings.is_system)
    reader = Reader(address_of, limits, rules.defaults(config), context.settings.shapes)
    described = read_submission(wanted, reader)
    specs = await settled(context, uid, [job.spec for job in described])
    for job, spec in zip(described, specs, strict=True):
        job.spec = with_patience(context.settings, spec)
    check_targets(context.settings, specs)
    hides, rights = hides_for(request), rights_of(request)
    wish = Submitting(uid, user, wanted.token, described, origin, hides=hides, rights=rights)
    if query.dry_run:
        return _dry_run(request, context, wish)
    note = note_of(specs) or local_note(specs) or await tried(context.settings, context.target, described)
    keep_texts(context, uid, {name: text for job in described for name, text in job.blobs.items()})
    return noted(_taken(request, query, await context.loop.submit(wish)), note)


def keep_texts(context: Context, uid: int, blobs: dict[str, bytes]) -> None:
    """Count what these texts add to the disk; refuse them where one person's would be too many."""
    if context.settings.is_system:
        new = (text for name, text in blobs.items() if not context.store.has_blob(name))
        context.fairness.keep(uid, sum(map(len, new)))


def read_submission(wanted: SubmitRequest, reader: Reader) -> list[Described]:
    """The jobs of a submission, sweeps expanded."""
    if not 1 <= len(wanted.jobs) <= BATCH:
        raise UsageError(f"a submission holds 1 to {BATCH} jobs, not {len(wanted.jobs)}")
    _check_token(wanted.token)
    for job in wanted.jobs:
        job.environ = job.environ or wanted.environ
    found: list[Described] = []
    size = 0
    for job in wanted.jobs:
        more = reader.read_all(job)
        size += sum(sum(map(len, one.spec.command)) for one in more)
        found += more
        if len(found) > BATCH or size > MOST_COMMANDS:
            raise UsageError(
                f"a submission holds at most {BATCH:,} jobs, with {MOST_COMMANDS >> 20} MiB of commands",
                hint="sweeps count with all that they become; an array counts once",
            )
    return found


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
    )
    return noted(_taken(request, query, await context.loop.submit(wish)), note)


def _check_token(token: str) -> None:
    if not 8 <= len(token) <= 200:
        raise UsageError("the token of a submission must be 8 to 200 characters")


def _dry_run(request: Request, context: Context, wish: Submitting) -> Response:
    """Judge a submission as if it came now, and leave it at that."""
    state = context.loop.state
    event = wish.event(state, context.store, clock.now())
    assert isinstance(event, Submit)
    admitted(state, event.uid, event.user, event.specs, event.outcomes, event.hidden)
    note = note_of(event.specs) or local_note(event.specs)
    scripts = scripts_of(context.settings, context.target, state.next_number, wish.jobs)
    page = dry_run_page(event.specs) + (f"{note}\n" if note else "") + "".join(scripts)
    return answer(request, lambda: dry_run_view(event.specs, scripts), lambda: page)


def _taken(request: Request, query: SubmitQuery, keys: tuple[JobKey, ...]) -> Response:
    context = context_of(request)

    def text() -> str:
        if query.parsable:
            return "".join(f"{label(key)}\n" for key in keys)
        names = [""] * len(keys)
        if query.named:
            names = [f" ({job.name})" if job else "" for job in map(context.job, keys)]
        first = context.job(keys[0]) if len(keys) > 1 else None
        return submitted_lines(list(map(label, keys)), names, first.spec.group if first else 0)

    return answer(
        request, lambda: jobs_view(context.entries(map(context.job, keys), viewer(request))), text, 201
    )
