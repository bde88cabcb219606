"""Routes that administer the machine: GPU restriction, drain, concurrency limits, notification tests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.events import Drain, Restrict, Update
from gflow.core.ids import job_key
from gflow.core.model import Job, Moment
from gflow.core.state.machine import Machine
from gflow.core.state.state import PART, State
from gflow.daemon.api.permissions import check, may_change_others_jobs
from gflow.daemon.api.request import (
    caller,
    context_of,
    existing_job,
    group_keys,
    key_of,
    read,
    while_connected,
)
from gflow.daemon.api.response import answer
from gflow.daemon.api.visibility import ANOTHER, Viewer, viewer_of
from gflow.daemon.loop.bulk_actions import BulkAction
from gflow.daemon.loop.commands import UpdateCommand
from gflow.errors import Refused
from gflow.options.job_options import Option
from gflow.options.values import is_group
from gflow.options.values import read as read_option
from gflow.text.gctl import allowed_line, drain_line, limit_line, show_gpus
from gflow.wire.answers.daemon import DeliveriesAnswer, Delivery
from gflow.wire.answers.gpus import AllowedAnswer, GpuLine, GpuLinesAnswer, drain_answer
from gflow.wire.answers.quotas import LimitAnswer
from gflow.wire.encoding import key_label
from gflow.wire.requests import DrainRequest, GpusRequest, LimitRequest, References
from gflow.wire.update import Change

_REASON = Option("reason", "name", "why")


async def set_gpus(request: Request) -> Response:
    """Restrict which GPUs new jobs may get. Running jobs keep theirs."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, GpusRequest)
    allowed = None if wanted.allowed_indices is None else tuple(wanted.allowed_indices)
    await context.loop.ask(lambda at: Restrict(at=at, uid=uid, allowed=allowed), origin)
    data = AllowedAnswer(None if allowed is None else sorted(set(allowed)))
    return answer(request, lambda: data, lambda: allowed_line(allowed))


async def list_gpus(request: Request) -> Response:
    """List the GPUs, each with its state and notes."""
    state = context_of(request).loop.state
    lines = gpu_lines(state, viewer_of(request))
    drain = drain_answer(state.machine)
    data = GpuLinesAnswer(lines, drained=drain.drained, reason=drain.reason, drained_gpus=drain.drained_gpus)
    return answer(request, lambda: data, lambda: show_gpus(lines, state.machine.drained_why))


async def drain(request: Request) -> Response:
    """Drain the machine or some of its GPUs, or resume them."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, DrainRequest)
    reason = read_option(_REASON, wanted.reason) if wanted.reason else ""
    gpus = None if wanted.gpus is None else tuple(sorted(set(wanted.gpus)))
    passing = wanted.passing

    def event(at: Moment) -> Drain:
        return Drain(at=at, uid=uid, on=wanted.on, gpus=gpus, reason=reason, passing=passing)

    await context.loop.ask(event, origin)
    if not wanted.on and gpus is not None and context.watch is not None:
        context.watch.clear_faults(gpus)
    machine = context.loop.state.machine
    data = drain_answer(machine)
    left = [] if wanted.on or gpus is not None else still_drained(machine)
    return answer(request, lambda: data, lambda: drain_line(gpus, reason, on=wanted.on, left=left))


def still_drained(machine: Machine) -> list[int]:
    """GPUs that an operator drained by index, or that have a fault."""
    return [
        index
        for index, gpu in machine.gpus.items()
        if index in machine.drained.gpus or gpu.uuid in machine.faults
    ]


async def set_limit(request: Request) -> Response:
    """Set how many jobs of a group, or tasks of an array, may run at once."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, LimitRequest)
    if is_group(wanted.job):
        key = (await group_keys(context, viewer_of(request), int(wanted.job[1:])))[0]
    else:
        key = key_of(context, request, wanted.job)
    jobs = capped_together(context.loop.state, existing_job(context, key))
    check(request, jobs)
    keys = tuple(job.key for job in jobs)
    limit = wanted.max_concurrent
    change = Change(fields={"max_concurrent": limit}, references=References())
    is_operator = may_change_others_jobs(request)
    if len(keys) > PART:
        bulk = BulkAction(Update, uid, origin, is_operator=is_operator, fields=change.fields)
        await while_connected(request, context.loop.apply_action(bulk, keys))
    else:
        await context.loop.run_command(UpdateCommand(uid, keys, change, origin, is_operator=is_operator))
    data = LimitAnswer(jobs=[key_label(key) for key in keys], max_concurrent=limit or None)
    return answer(request, lambda: data, lambda: limit_line(jobs, limit))


def capped_together(state: State, job: Job) -> list[Job]:
    """Active jobs that share one concurrency limit: the array of `job`, or its group.

    Raises Refused if there are none.
    """
    array = state.jobs.get(job_key(job.number)) if job.task is not None or job.is_array else None
    if array is not None:
        return [array]
    group = job.spec.group
    found = [one for one in state.jobs.values() if group and one.spec.group == group]
    if not found:
        why = "has ended" if job.is_final else "was submitted alone"
        raise Refused(
            f"job {job.label} {why}: there is nothing to limit",
            hint="limits are for arrays, and for jobs submitted together with --max-concurrent",
        )
    return found


def gpu_lines(state: State, viewer: Viewer) -> list[GpuLine]:
    """One row per GPU: idle, allocated or unavailable, with notes that explain it."""
    lines = []
    for index, gpu in state.machine.gpus.items():
        holders = [viewer.redact_job(state.jobs[key]) for key in sorted(state.machine.holders.get(index, ()))]
        notes = [f"job {viewer.title(job)}" if viewer.sees_job(job) else ANOTHER for job in holders]
        if index in state.machine.foreign:
            notes.append(f"unmanaged: {state.machine.foreign[index]}")
        if index in state.machine.blocked:
            notes.append(str(state.machine.blocked[index]))
        if state.machine.allowed is not None and index not in state.machine.allowed:
            notes.append("restricted")
        if index in state.machine.drained.gpus:
            notes.append(_because("drained", state.machine.drained.gpus[index]))
        if gpu.simulated:
            notes.append("simulated")
        is_idle = index in state.machine.idle
        lines.append(
            GpuLine(
                index=index,
                status="allocated" if holders else "idle" if is_idle else "unavailable",
                notes=notes,
            )
        )
    return lines


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


async def test_notifications(request: Request) -> Response:
    """Send a test notification to every destination, and report the results."""
    notifier = context_of(request).notifier
    if not notifier.destinations:
        raise Refused(
            "no notifications are configured",
            hint="set notifications.enabled and [[notifications.webhooks]] (docs/notifications.md)",
        )
    results = await notifier.test()
    data = DeliveriesAnswer([Delivery(shown, error or None) for shown, error in results])
    return answer(
        request, lambda: data, lambda: "".join(f"{shown}: {error or 'sent'}\n" for shown, error in results)
    )
