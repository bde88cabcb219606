"""The route of `gflow status`: everything at a glance, and what needs attention."""

from __future__ import annotations

import heapq
import os
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from gflow import __version__
from gflow.core.ids import JobKey
from gflow.core.model import LOCAL, UNKILLABLE, Job, JobState, Moment
from gflow.core.queries.job_filter import Filter
from gflow.core.state.state import State
from gflow.daemon.api.handlers.gpus import gpus_info
from gflow.daemon.api.handlers.overview_lists import MOST_FORECAST, WAITING, list_jobs
from gflow.daemon.api.handlers.queue import count_jobs
from gflow.daemon.api.handlers.status import warnings_of
from gflow.daemon.api.job_search import ListingRequest, find
from gflow.daemon.api.request import context_of, parse_number, query_of, while_connected
from gflow.daemon.api.response import answer
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.context import Context
from gflow.daemon.loop import timers
from gflow.errors import StoreError
from gflow.store.reader import Reader
from gflow.text.overview import overview_page
from gflow.text.queue import Entry
from gflow.wire.answers.gpus import InfoAnswer
from gflow.wire.answers.jobs import job_view
from gflow.wire.answers.overview import Attention, OverviewAnswer, WaitingJob, count_gpus
from gflow.wire.encoding import key_label, rfc3339
from gflow.wire.queries import OverviewQuery

DAY_S = 86400
# Jobs of the caller that are listed, and failures that are read.
SHOWN = 5
MOST_FAILED = 200
# A disk with less free space than both is full soon.
LOW_BYTES, LOW_PART = 4 << 30, 0.05


async def show_overview(request: Request) -> Response:
    """Everything at a glance: daemon, GPUs, queue, the caller's jobs, and what needs attention."""
    context, viewer, query = context_of(request), viewer_of(request), query_of(request, OverviewQuery)
    width = parse_number("width", query.width or "0", 0)
    context.loop.look_at_store()
    now = timers.now()
    failed, disk = await while_connected(request, _look_back(context, viewer, now))
    waiting = await _waiting_jobs(request, now)
    data = _overview(context, viewer, now, waiting, [*disk, *failed])
    if query.lists:
        data.lists = await list_jobs(request, now, query.lists)
    return answer(request, lambda: data, lambda: overview_page(data, now.wall, width))


def _overview(
    context: Context, viewer: Viewer, now: Moment, waiting: list[WaitingJob], found: list[Attention]
) -> OverviewAnswer:
    state = context.loop.state
    running, queued = count_jobs(state)
    mine, my_waiting = _own_jobs(state, viewer)
    listed = sorted(
        (job for job in mine if job.state is JobState.RUNNING),
        key=lambda job: (job.started_at or 0.0, job.key),
    )
    info = gpus_info(context, viewer)
    uptime_s = now.boot - context.started_boot
    return OverviewAnswer(
        version=__version__,
        pid=context.pid,
        started_at=rfc3339(now.wall - uptime_s),
        uptime_secs=uptime_s,
        system=context.settings.is_system,
        targets=[LOCAL, *sorted(context.settings.clusters)],
        cpu_total=state.machine.cpus,
        cpu_available=state.machine.free_cpus,
        memory_total_mib=state.machine.memory_mib,
        memory_available_mib=state.machine.free_memory_mib,
        gpu_counts=count_gpus(info.gpus, rfc3339(now.wall)),
        gpus=info.gpus,
        running=running,
        waiting=queued,
        held=_count_held(context),
        user=viewer.user,
        my_running=len(mine),
        my_waiting=my_waiting,
        my_running_jobs=[job_view(*entry) for entry in context.entries(listed[:SHOWN], viewer)],
        my_waiting_jobs=waiting,
        attention=[*_daemon_trouble(context), *_gpu_trouble(info), *_wasted(context, viewer), *found],
    )


def _count_held(context: Context) -> int:
    """How many of the waiting jobs are held. Each waiting task of an array counts, as in `count_jobs`."""
    held, jobs = context.loop.meters.apart[JobState.HOLD], context.loop.state.jobs
    arrays = [jobs[key].progress for key in jobs.arrays if key in held]
    return len(held) + sum(len(progress.pending) - 1 for progress in arrays if progress is not None)


def _own_jobs(state: State, viewer: Viewer) -> tuple[list[Job], int]:
    """The caller's jobs that run here or that a cluster has, and the number of those that wait.

    They are counted as in `count_jobs`: each waiting task of an array counts.
    """
    there = (state.jobs[key] for key in state.remote.jobs if not state.jobs[key].is_array)
    running = [job for job in (*state.running.values(), *there) if viewer.caller.owns(job)]
    arrays = [job.progress for key in state.jobs.arrays if viewer.caller.owns(job := state.jobs[key])]
    tasks = sum(len(progress.pending) for progress in arrays if progress is not None)
    active = state.accounting.active_jobs.get(viewer.uid, 0)
    return running, max(0, active - len(running) - len(arrays) + tasks)


# ---------------------------------------------------------------- the caller's waiting jobs


async def _waiting_jobs(request: Request, now: Moment) -> list[WaitingJob]:
    """The caller's next starts; the oldest waiting jobs if no start can be estimated."""
    context, viewer = context_of(request), viewer_of(request)
    starts: dict[JobKey, float] = {}
    if count_jobs(context.loop.state)[1] <= MOST_FORECAST:
        starts = await while_connected(request, context.forecasts.starts(viewer.uid))
    jobs = context.loop.state.jobs
    own = [(at, key) for key, at in starts.items() if key in jobs and viewer.caller.owns(jobs[key])]
    entries = context.entries((jobs[key] for _, key in heapq.nsmallest(SHOWN, own)), viewer)
    if not entries:
        wanted = Filter(states=WAITING, users=frozenset({viewer.user}))
        listing = ListingRequest(uid=viewer.uid, wanted=wanted, is_past=False, limit=SHOWN)
        entries = list((await find(context, listing, now)).entries)
    return [_waiting_view(entry, starts.get(entry[0].key), now) for entry in entries]


def _waiting_view(entry: Entry, start_boot: float | None, now: Moment) -> WaitingJob:
    job, why = entry
    return WaitingJob(
        id=key_label(job.key),
        name=job.name,
        gpus=job.spec.gpus,
        reason=str(why or job.reason) or None,
        tasks=1 if job.progress is None else len(job.progress.pending),
        expected_start=None if start_boot is None else rfc3339(now.to_wall(start_boot)),
    )


# ---------------------------------------------------------------- what needs attention


def _daemon_trouble(context: Context) -> list[Attention]:
    loop = context.loop
    why = loop.read_only
    found = [Attention(kind="daemon", text=f"no change is accepted: {why}", hint="df -h")] if why else []
    found += [Attention(kind="daemon", text=text, hint="gflowd status") for text in warnings_of(loop.state)]
    machine = loop.state.machine
    if machine.is_drained:
        reason = f": {machine.drained_why}" if machine.drained_why else ""
        text = f"the machine is drained, so no job starts{reason}"
        found.append(Attention(kind="drained", text=text, hint="gctl resume"))
    return found


def _gpu_trouble(info: InfoAnswer) -> list[Attention]:
    """GPUs that get no jobs, grouped by the reason; restricted ones are meant to get none."""
    found = [Attention(kind="gpu", text=info.trouble, hint="gflowd status")] if info.trouble else []
    reasons: dict[str, list[int]] = {}
    for view in info.gpus:
        if view.reason is not None and view.reason != "Restricted":
            reasons.setdefault(view.reason, []).append(view.index)
    for reason, indices in reasons.items():
        text = f"GPU {','.join(map(str, indices))} gets no new jobs: {reason}"
        is_ours = reason.startswith(("Drained", "Unhealthy"))
        hint = f"gctl resume --gpu {','.join(map(str, indices))}" if is_ours else "ginfo -l"
        found.append(Attention(kind="gpu", text=text, hint=hint))
    return found


def _wasted(context: Context, viewer: Viewer) -> list[Attention]:
    """Running jobs that do not use their GPUs or survive a kill; first those of the caller."""
    running = context.loop.state.running
    keys = [*running.unused, *running.stuck]
    jobs = [job for key in keys if (job := running.get(key)) is not None and viewer.sees_job(job)]
    jobs.sort(key=lambda job: not viewer.caller.owns(job))
    found = []
    for job, why in context.entries(jobs, viewer):
        if why is not None:
            whose = "" if viewer.caller.owns(job) else f" of {job.user}"
            text = f"job {job.label} ({job.name}){whose}: {why.detail or why.code}"
            hint = f"gjob show {job.label}" if why.code == UNKILLABLE else f"gjob usage {job.label}"
            found.append(Attention(kind="idle", text=text, hint=hint, jobs=[key_label(job.key)]))
    return found


async def _look_back(
    context: Context, viewer: Viewer, now: Moment
) -> tuple[list[Attention], list[Attention]]:
    """Failed jobs of the caller in the last day, and disks that are nearly full. Read in a thread."""
    with suppress(StoreError):  # the overview is shown although the database cannot be read
        return await context.threads.read(
            viewer.uid,
            context.store.reader,
            lambda reader: (_failures(reader, viewer, now), _disk_trouble(context)),
        )
    return [], []


def _failures(reader: Reader, viewer: Viewer, now: Moment) -> list[Attention]:
    """One entry for jobs of the same name and reason; the newest first."""
    rows = reader.failed_since(now.wall - DAY_S, viewer.user, MOST_FAILED)
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in map(reader.job, rows):
        if viewer.caller.owns(job):
            groups.setdefault((job.name, str(job.reason) or job.state.value), []).append(job)
    return [_failure(name, reason, jobs) for (name, reason), jobs in groups.items()]


def _failure(name: str, reason: str, jobs: list[Job]) -> Attention:
    labels = [job.label for job in jobs]
    which = f"job {labels[0]}"
    if len(jobs) > 1:
        which = f"{len(jobs)} jobs: {', '.join(labels[:3])}{', …' if len(jobs) > 3 else ''}"
    return Attention(
        kind="failed",
        text=f"{name} ({which}) ended: {reason}",
        hint=f"gjob log {labels[0]}",
        jobs=[key_label(job.key) for job in jobs],
    )


def _disk_trouble(context: Context) -> list[Attention]:
    """The disks of the database and of the logs, if they are nearly full."""
    found: dict[int, Attention] = {}
    for folder in (context.settings.database.parent, context.settings.logs):
        with suppress(OSError):
            disk, device = os.statvfs(folder), os.stat(folder).st_dev
            free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
            if free < LOW_BYTES and free < LOW_PART * size:
                text = f"the disk of {folder} has {free / (1 << 30):.1f} GiB left"
                found[device] = Attention(kind="disk", text=text, hint=f"df -h {folder}")
    return list(found.values())
