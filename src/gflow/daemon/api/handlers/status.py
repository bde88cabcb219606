"""Routes for the machine and the daemon: GPUs, status, health, backup."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from gflow import __version__
from gflow.config.table import BY_KEY
from gflow.core.state.state import State
from gflow.daemon.api.handlers.clusters import unreachable_clusters
from gflow.daemon.api.handlers.gpus import blocked_of, gpus_info, holders_of
from gflow.daemon.api.handlers.queue import count_jobs
from gflow.daemon.api.request import caller, context_of, parse_number, query_of
from gflow.daemon.api.response import answer
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.context import Context
from gflow.daemon.loop import timers
from gflow.errors import StoreError
from gflow.store.snapshot import back_up
from gflow.targets.local.run_record import Content
from gflow.text.gpus import gpu_details, gpu_lines, gpu_table
from gflow.text.job_page import status_page
from gflow.wire.answers.daemon import BackupAnswer, HealthAnswer, Setting, StatusAnswer, Stray
from gflow.wire.queries import InfoQuery

_one_backup = asyncio.Lock()


async def show_info(request: Request) -> Response:
    """The GPUs and their jobs: by partition, or with `width` a line for each GPU; `long`: all details."""
    context, viewer = context_of(request), viewer_of(request)
    state = context.loop.state
    gpus = list(state.machine.gpus.values())
    query = query_of(request, InfoQuery)
    width = parse_number("width", query.width or "0", 0)
    away = "".join(f"{words}\n" for words in unreachable_clusters(context, caller(request)[0]))
    if query.long:
        data = gpus_info(context, viewer)
        return answer(request, lambda: data, lambda: gpu_details(data, gpus) + away)
    if width:
        data = gpus_info(context, viewer)
        return answer(request, lambda: data, lambda: gpu_lines(data, gpus, width, datetime.now(UTC)) + away)
    return answer(
        request,
        lambda: gpus_info(context, viewer),
        lambda: gpu_table(
            gpus,
            holders_of(state, viewer),
            blocked_of(state, viewer),
            state.machine.drained_why,
            viewer.title,
        ),
    )


async def show_status(request: Request) -> Response:
    """The daemon: version, settings, resources, and numbers of running and waiting jobs."""
    context, viewer = context_of(request), viewer_of(request)
    context.loop.look_at_store()
    state = context.loop.state
    running, waiting = count_jobs(state)
    stray_runs = (
        context.strays() if viewer.sees_names else {}
    )  # their owners are unknown, so they cannot be redacted
    strays = [stray_view(name, content) for name, content in sorted(stray_runs.items())]
    data = StatusAnswer(
        version=__version__,
        pid=context.pid,
        uptime_secs=timers.now().boot - context.started_boot,
        gpu_total=len(state.machine.gpus),
        gpu_available=len(state.machine.idle),
        gpu_simulated=any(gpu.simulated for gpu in state.machine.gpus.values()),
        cpu_total=state.machine.cpus,
        cpu_available=state.machine.free_cpus,
        memory_total_mib=state.machine.memory_mib,
        memory_available_mib=state.machine.free_memory_mib,
        read_only=context.loop.read_only,
        drained=state.machine.is_drained,
        drained_reason=state.machine.drained_why,
        running=running,
        waiting=waiting,
        flags=list(context.settings.flags),
        settings={
            key: Setting(BY_KEY[key].display_value(found.value), found.origin)
            for key, found in context.settings.config.found.items()
            if viewer.sees_names or not BY_KEY[key].names_others
        },
        config_files=list(context.settings.config.files),
        notes=[
            *context.settings.notes,
            *_restriction_notes(context),
            *warnings_of(state),
            *map(_stray_note, strays),
        ],
        strays=strays,
        socket=str(context.settings.socket),
        data=str(context.settings.data),
        database=str(context.settings.database),
    )
    return answer(request, lambda: data, lambda: status_page(data))


def _restriction_notes(context: Context) -> list[str]:
    """Which of `--gpus` and `gctl set-gpus` restricts the GPUs for new jobs, and how to change it."""
    machine, kept = context.loop.state.machine, None
    with suppress(StoreError):  # the status is shown although the database cannot be read
        kept = context.store.meta_value("allowed_gpus")
    if kept is None:
        return []
    now = "all" if machine.allowed is None else ",".join(map(str, sorted(machine.allowed)))
    if context.loop.state.policy.gpus_win and str(kept) != now:
        return [
            f"until this daemon stops, --gpus {now} overrides gctl set-gpus {kept}",
            f"gctl set-gpus {now} keeps it",
        ]
    if machine.allowed is None:
        return []
    return [f"new jobs may use only GPU{'s' if ',' in now else ''} {now}; gctl set-gpus all lifts this"]


def warnings_of(state: State) -> list[str]:
    """Current problems, apart from a read-only database."""
    stalled = state.machine.stalled
    return [f"nothing can be started now: {stalled}; it is tried again"] if stalled else []


def stray_view(name: str, content: Content) -> Stray:
    """View of a stray: a live run that the database does not know. A signal to its shim (`pid`) ends it."""
    shim = content.shim
    return Stray(
        job=name.rpartition(".")[0],
        pid=shim.pid if shim else None,
        started=shim.started if shim else None,
    )


def _stray_note(stray: Stray) -> str:
    return f"job {stray.job} runs, and the database does not know it; gflowd down --kill-jobs ends it"


async def show_health(request: Request) -> Response:
    """Whether the daemon runs and accepts changes."""
    context = context_of(request)
    context.loop.look_at_store()
    why = context.loop.read_only
    data = HealthAnswer(status="read_only" if why else "ok", pid=context.pid, detail=why)
    return answer(request, lambda: data, lambda: f"{data.status}\n", 503 if why else 200)


async def backup(request: Request) -> Response:
    """Back up the database now; the answer has the path of the backup."""
    settings = context_of(request).settings
    target = settings.backups / time.strftime("manual-%Y%m%d-%H%M%S.db")
    async with _one_backup:
        made = await asyncio.to_thread(back_up, settings.database, target)
    return answer(request, lambda: BackupAnswer(str(made)), lambda: f"{made}\n")
