"""Routes about the machine and the daemon itself."""

from __future__ import annotations

import os

from starlette.requests import Request
from starlette.responses import Response

from gflow import __version__
from gflow.core.model import JobState
from gflow.daemon import clock
from gflow.daemon.api.answers import answer
from gflow.daemon.api.jobs import context_of
from gflow.text.pages import gpu_table, status_page
from gflow.wire.views import gpu_view


async def info(request: Request) -> Response:
    """The GPUs and who has them."""
    state = context_of(request).loop.state
    gpus = list(state.gpus.values())
    holders = {index: state.jobs[key] for index, key in state.holders.items()}
    data = {"gpus": [gpu_view(gpu, holders.get(gpu.index)) for gpu in gpus]}
    return answer(request, lambda: data, lambda: gpu_table(gpus, holders))


async def status(request: Request) -> Response:
    context = context_of(request)
    state = context.loop.state
    running = sum(job.state is JobState.RUNNING for job in state.jobs.values())
    data = {
        "version": __version__,
        "pid": os.getpid(),
        "uptime_secs": clock.now().boot - context.started_boot,
        "gpu_total": len(state.gpus),
        "gpu_available": len(state.free_gpus()),
        "gpu_simulated": any(gpu.simulated for gpu in state.gpus.values()),
        "cpu_total": state.cpus,
        "cpu_available": state.free_cpus,
        "running": running,
        "waiting": len(state.jobs) - running,
        "socket": str(context.settings.socket),
        "data": str(context.settings.data),
    }
    return answer(request, lambda: data, lambda: status_page(data))


async def health(request: Request) -> Response:
    data = {"status": "ok", "pid": os.getpid()}
    return answer(request, lambda: data, lambda: "ok\n")
