"""/metrics for Prometheus: base units, few labels. A scrape is O(1) in the length of the queue."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from gflow import __version__
from gflow.core.model import ACTIVE, FINAL, Gpu, JobState
from gflow.core.state.machine import Machine
from gflow.daemon.api.handlers.gpus import blocked_of
from gflow.daemon.api.request import context_of
from gflow.daemon.api.visibility import viewer_of
from gflow.daemon.context import Context
from gflow.daemon.loop import timers
from gflow.daemon.loop.counters import Histogram, Meters
from gflow.text.prometheus import MEDIA, Labels, Page

MIB = 1 << 20
# Counters by user: audit entry -> name and help text.
COUNTERS = {"submitted": ("submitted", "Jobs that were submitted.")} | {
    state.row.entry: (state.row.metric, state.row.about) for state in JobState if state in FINAL
}


async def show_metrics(request: Request) -> Response:
    """Metrics in the Prometheus text format 0.0.4. Counters restart at zero with the daemon."""
    context, page = context_of(request), Page()
    _user_counters(page, context.loop.meters, is_named=viewer_of(request).sees_names)
    _jobs(page, context)
    _machine(page, context.loop.state.machine)
    _gpus(page, context)
    _daemon(page, context)
    return Response(page.text(), media_type=MEDIA)


def _user_counters(page: Page, meters: Meters, *, is_named: bool) -> None:
    """Job counters by user, or their sums where other users' names are hidden."""
    for what, (name, about) in COUNTERS.items():
        counts = {user: count for (event, user), count in meters.users.items() if event == what}
        samples: list[tuple[Labels, float]] = (
            [({"user": user}, count) for user, count in sorted(counts.items())]
            if is_named
            else [({}, sum(counts.values()))]
        )
        page.family(f"gflow_jobs_{name}_total", "counter", about, samples)


def _jobs(page: Page, context: Context) -> None:
    state, meters = context.loop.state, context.loop.meters
    counts = {kind: len(keys) for kind, keys in meters.apart.items()} | {JobState.RUNNING: len(state.running)}
    counts[JobState.QUEUED] = len(state.jobs) - sum(counts.values()) - len(meters.started)
    for kind in JobState:
        if kind in ACTIVE:
            page.one(f"gflow_jobs_{kind.row.metric}", "gauge", kind.row.about, counts[kind])
    page.histogram(
        "gflow_job_wait_seconds", "Time from submission to the first start.", [_buckets({}, meters.waited)]
    )
    page.histogram(
        "gflow_job_run_seconds", "Run time of the last attempt of ended jobs.", [_buckets({}, meters.ran)]
    )
    turns = [_buckets({"operation": name}, found) for name, found in meters.turns.items()]
    page.histogram("gflow_scheduler_latency_seconds", "Duration of the parts of a turn of the loop.", turns)


def _buckets(labels: Labels, one: Histogram) -> tuple[Labels, tuple[float, ...], list[int], float]:
    return labels, one.bounds, one.counts, one.sum


def _machine(page: Page, machine: Machine) -> None:
    total, free, memory, left = (
        len(machine.gpus),
        len(machine.idle),
        machine.memory_mib,
        machine.free_memory_mib,
    )
    allocated = len(machine.holders) / total if total else 0.0
    page.one("gflow_gpus", "gauge", "GPUs of this machine.", total)
    page.one("gflow_gpus_total", "gauge", "Former name of gflow_gpus.", total)
    page.one("gflow_gpus_available", "gauge", "GPUs that are free for new jobs.", free)
    page.one(
        "gflow_gpus_allocated_ratio", "gauge", "Fraction of the GPUs that are allocated to jobs.", allocated
    )
    about = "Former name of gflow_gpus_allocated_ratio."
    page.one("gflow_gpu_utilization_ratio", "gauge", about, allocated)
    page.one("gflow_cpu_slots", "gauge", "CPU slots of this machine.", machine.cpus)
    page.one("gflow_cpu_slots_available", "gauge", "CPU slots that are free.", machine.free_cpus)
    page.one("gflow_memory_bytes", "gauge", "Host memory that jobs may book.", memory * MIB)
    page.one("gflow_memory_available_bytes", "gauge", "Host memory that no job has booked.", left * MIB)
    page.one("gflow_memory_total_mb", "gauge", "Former form of gflow_memory_bytes, in MiB.", memory)
    about = "Former form of gflow_memory_available_bytes, in MiB."
    page.one("gflow_memory_available_mb", "gauge", about, left)
    used = (memory - left) / memory if memory else 0.0
    page.one("gflow_memory_utilization_ratio", "gauge", "Fraction of the host memory that is booked.", used)


def _gpus(page: Page, context: Context) -> None:
    """Metrics of each GPU, labelled with its index and UUID."""
    state = context.loop.state
    blocked = blocked_of(state)
    gpus = list(state.machine.gpus.values())
    each = [(_card(gpu), gpu) for gpu in gpus]
    page.family(
        "gflow_gpu_jobs", "gauge", "Jobs on the GPU.",
        [(card, len(state.machine.holders.get(gpu.index, ()))) for card, gpu in each],
    )  # fmt: skip
    page.family(
        "gflow_gpu_blocked", "gauge", "Whether the GPU gets no new jobs.",
        [(card, float(gpu.index in blocked)) for card, gpu in each],
    )  # fmt: skip
    page.family(
        "gflow_gpu_memory_bytes", "gauge", "Memory size of the GPU.",
        [(card, gpu.memory_mib * MIB) for card, gpu in each],
    )  # fmt: skip
    for name, about, field, scale in METERED:
        page.family(f"gflow_gpu_{name}", "gauge", about, _readings(context, gpus, field, scale))


METERED = (
    ("memory_used_bytes", "Memory in use on the GPU.", "memory_mib", float(MIB)),
    ("busy_ratio", "Utilisation of the GPU.", "utilisation", 0.01),
    ("temperature_celsius", "Temperature of the GPU.", "temperature", 1.0),
    ("power_watts", "Power draw of the GPU.", "power_w", 1.0),
)


def _readings(context: Context, gpus: list[Gpu], field: str, scale: float) -> Iterator[tuple[Labels, float]]:
    """Latest readings of the real GPUs; a missing reading has no sample."""
    for gpu in gpus:
        card = context.watch.latest.cards.get(gpu.index) if context.watch else None
        reading = getattr(card.sample, field) if card else None
        if reading is not None:
            yield _card(gpu), reading * scale


def _card(gpu: Gpu) -> Labels:
    return {"gpu": str(gpu.index), "uuid": gpu.uuid}


def _daemon(page: Page, context: Context) -> None:
    page.family("gflow_build_info", "gauge", "Version of gflow.", [({"version": __version__}, 1.0)])
    page.one(
        "gflow_read_only", "gauge", "Whether the database cannot be written.", bool(context.loop.read_only)
    )
    began = time.time() - (timers.now().boot - context.started_boot)
    page.one(
        "process_start_time_seconds",
        "gauge",
        "Start time of the daemon, in seconds since 1970.",
        round(began, 3),
    )
    spent = os.times()
    page.one("process_cpu_seconds_total", "counter", "CPU time of the daemon.", spent.user + spent.system)
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    page.one("process_resident_memory_bytes", "gauge", "Resident memory of the daemon.", resident)
    page.one(
        "process_open_fds", "gauge", "Open file descriptors of the daemon.", len(os.listdir("/proc/self/fd"))
    )
