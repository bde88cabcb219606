"""GPU views: holders, unmanaged processes, readings, blocks. Routes for ignored GPU processes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import UNKILLABLE, Block, Gpu, Job, Moment
from gflow.core.state.machine import RESTRICTED
from gflow.core.state.state import State
from gflow.daemon.api.request import caller, context_of, read
from gflow.daemon.api.response import answer
from gflow.daemon.context import NAMELESS, Context, Viewer
from gflow.daemon.loop import timers
from gflow.daemon.loop.commands import AuditCommand
from gflow.errors import NotFound
from gflow.gpu.census import Report, UnmanagedProcess
from gflow.gpu.port import Card
from gflow.targets.port import Run
from gflow.wire.answers.gpus import (
    GpuView,
    Holder,
    Ignored,
    IgnoredAnswer,
    IgnoredNowAnswer,
    InfoAnswer,
    Process,
    Reserved,
    drain_answer,
    gpu_view,
)
from gflow.wire.encoding import key_label, rfc3339
from gflow.wire.requests import GpuProcess

# NVML bits of clock throttle reasons, and their names.
SLOWED = {
    0x04: "its power limit",
    0x08: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "the power supply",
}


def holders_of(state: State, viewer: Viewer) -> dict[int, list[Job]]:
    return {
        index: [viewer.redact_job(_with_kept_gpus(state.jobs[key])) for key in sorted(jobs)]
        for index, jobs in state.machine.holders.items()
    }


def _with_kept_gpus(job: Job) -> Job:
    """The job, with the GPUs that stay booked for it while it is withdrawn from a cluster."""
    kept = job.remote.kept if job.remote is not None else None
    return job if kept is None else msgspec.structs.replace(job, gpu_ids=kept)


def blocked_of(state: State, viewer: Viewer | None = None) -> dict[int, Block]:
    """All GPUs that get no new jobs, with the reason. `viewer`: redacts the reasons; None: no redaction."""
    found = ((index, state.machine.closed(index)) for index in state.machine.gpus)
    # A restricted GPU counts as blocked only once it has no job.
    closed = {
        index: why
        for index, why in found
        if why and (why.kind != RESTRICTED or index not in state.machine.holders)
    }
    unkillable = [job for key in state.running.stuck if (job := state.running.get(key)) is not None]
    redact = viewer.redact_text if viewer else str
    return {
        index: Block(UNKILLABLE, redact(f"job {job.label}")) for job in unkillable for index in job.gpu_ids
    } | closed


def throttle_reasons(bits: int) -> list[str]:
    """Names of the clock throttle reasons in a bit mask of NVML."""
    return [word for bit, word in SLOWED.items() if bits & bit]


def gpus_info(context: Context, viewer: Viewer) -> InfoAnswer:
    """The full view of all GPUs."""
    state = context.loop.state
    report = context.watch.latest if context.watch else Report()
    holders, blocked = holders_of(state, viewer), blocked_of(state, viewer)
    gpus = []
    for gpu in state.machine.gpus.values():
        jobs = holders.get(gpu.index, [])
        known = [job for job in jobs if viewer.sees_job(job)]
        view = gpu_view(gpu, known, blocked.get(gpu.index))
        view.available &= not jobs
        if gpu.index in report.cards:
            _add_readings(view, report.cards[gpu.index])
        _add_idle_times(view, context, jobs)
        view.holders = [_holder_view(gpu, job, report, viewer) for job in jobs]
        view.processes = [_process_view(one, viewer) for one in report.unmanaged.get(gpu.index, ())]
        view.reserved = _reservations_of(state, gpu.index, viewer)
        gpus.append(view)
    drain = drain_answer(state.machine)
    return InfoAnswer(
        gpus=gpus,
        allowed_gpu_indices=None if state.machine.allowed is None else sorted(state.machine.allowed),
        trouble=state.machine.gpu_trouble,
        driver=report.driver,
        limits=limits_of(context, report),
        is_isolated=None if context.isolation is None else not context.isolation.problem,
        isolation_problem=context.isolation.problem if context.isolation else "",
        drained=drain.drained,
        reason=drain.reason,
        drained_gpus=drain.drained_gpus,
    )


def _add_idle_times(view: GpuView, context: Context, jobs: list[Job]) -> None:
    """Set the idle time of a GPU, and the time by which the last of its jobs must end.

    The idle time is a lower bound if the GPU has been idle since before the daemon started.
    """
    now = timers.now()
    left_at = context.loop.state.machine.freed_at.get(view.index)
    ends = [end for job in jobs if (end := _latest_end(job, now)) is not None]
    view.idle_s = None if jobs else round(now.boot - (left_at or context.started_boot), 1)
    view.idle_s_at_least = not jobs and left_at is None
    view.free_at = rfc3339(max(ends)) if ends and len(ends) == len(jobs) else None


def _latest_end(job: Job, now: Moment) -> float | None:
    """The wall time at which the time limit ends a running job; None: it has no limit."""
    if job.started_boot is None or not job.spec.time_limit_s:
        return None
    return now.to_wall(job.started_boot + job.spec.time_limit_s)


def _reservations_of(state: State, index: int, viewer: Viewer) -> list[Reserved]:
    """The reservations of a GPU that have not ended, by start."""
    found = sorted((one for one in state.reserved.live if index in one.gpus), key=lambda one: one.start)
    return [Reserved(viewer.redact_user(one.user), rfc3339(one.start), rfc3339(one.end)) for one in found]


def limits_of(context: Context, report: Report) -> list[str]:
    """How memory limits of jobs on shared GPUs are enforced, strongest first."""
    if context.watch is None:
        return ["booked only (the GPUs are simulated)"]
    held = ["variables for PyTorch, JAX and TensorFlow"]
    if context.mps is not None:
        held.insert(0, "MPS" if context.mps.ready else f"no MPS ({context.mps.trouble})")
    if report.unclear:
        names = ",".join(map(str, sorted(report.unclear)))
        return [*held, f"GPU {names} is not watched: its processes cannot be identified"]
    return [*held, f"a watchdog polls every {context.watch.quick_s * 1000:.0f} ms"]


def _add_readings(view: GpuView, card: Card) -> None:
    sample = card.sample
    view.used_mib = sample.memory_mib
    view.utilisation = sample.utilisation
    view.temperature = sample.temperature
    view.power_w = sample.power_w
    view.clock_mhz = sample.clock_mhz
    view.memory_clock_mhz = sample.memory_clock_mhz
    view.slowed = throttle_reasons(sample.slowed)
    view.pci_bus = card.bus
    view.mig_parent = card.parent or None


def _process_view(one: UnmanagedProcess, viewer: Viewer) -> Process:
    """View of an unmanaged process. User and command are hidden where names are private."""
    return Process(*(one if viewer.sees_names else one._replace(user=NAMELESS, command=NAMELESS)))


def _holder_view(gpu: Gpu, job: Job, report: Report, viewer: Viewer) -> Holder:
    used: Mapping[int, int] = report.used.get(Run(job.key, job.attempt).name, {})
    end = _latest_end(job, timers.now())
    return Holder(
        id=key_label(job.key) if viewer.sees_job(job) else None,
        name=job.name,
        user=job.user,
        used_mib=used.get(gpu.index) if report.cards else None,
        limit_mib=job.spec.gpu_memory_mib if job.spec.shared else None,
        started_at=None if job.started_at is None else rfc3339(job.started_at),
        ends_at=None if end is None else rfc3339(end),
    )


# ---------------------------------------------------------------- ignored processes


async def list_ignored(request: Request) -> Response:
    """List the GPU processes that an operator told gflow to ignore."""
    watch = context_of(request).watch
    listed = [Ignored(gpu_index=gpu, pid=pid) for gpu, pid, _ in sorted(watch.ignored if watch else ())]
    text = "".join(f"gpu={one.gpu_index}\tpid={one.pid}\n" for one in listed)
    return answer(request, lambda: IgnoredAnswer(listed), lambda: text)


async def ignore(request: Request) -> Response:
    """Ignore a process: it does not block its GPU, until the process ends or the daemon stops."""
    context, wanted = context_of(request), await read(request, GpuProcess)
    if wanted.gpu_index not in context.loop.state.machine.gpus or context.watch is None:
        raise NotFound(f"there is no GPU {wanted.gpu_index} here", hint="ginfo lists the GPUs")
    return await _answer_change(
        request, wanted, "ignored", context.watch.ignore(wanted.gpu_index, wanted.pid)
    )


async def unignore(request: Request) -> Response:
    """Stop ignoring a process: it blocks its GPU again."""
    context, wanted = context_of(request), await read(request, GpuProcess)
    changed = context.watch is not None and context.watch.unignore(wanted.gpu_index, wanted.pid)
    return await _answer_change(request, wanted, "no longer ignored", changed)


async def _answer_change(request: Request, wanted: GpuProcess, what: str, changed: bool) -> Response:
    uid, origin = caller(request)
    if changed:
        detail = f"process {wanted.pid} on GPU {wanted.gpu_index}"
        await context_of(request).loop.run_command(AuditCommand(f"gpu process {what}", detail, uid, origin))
    data = IgnoredNowAnswer(gpu_index=wanted.gpu_index, pid=wanted.pid, changed=changed)
    text = f"process {wanted.pid} on GPU {wanted.gpu_index} is {what}\n"
    return answer(request, lambda: data, lambda: text)
