"""GPU usage and progress over time: recorded samples, or a probe of its nodes for a job on a cluster."""

from __future__ import annotations

import logging
import sqlite3
import time

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gflow.core.model import LOCAL, Job, JobState
from gflow.daemon.api.handlers.gpus import throttle_reasons
from gflow.daemon.api.permissions import check, may_ask_cluster
from gflow.daemon.api.request import caller, context_of, existing_job, key_of, query_of, while_connected
from gflow.daemon.api.response import answer
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import slurm_of
from gflow.errors import Forbidden, Refused
from gflow.store.progress_points import Point, points_of
from gflow.store.samples import Mean, OfJob, gpu_means, samples_of
from gflow.targets.slurm.commands.efficiency import parse_efficiency
from gflow.targets.slurm.commands.node_usage import parse_probe
from gflow.targets.slurm.commands.slurm_cli import complaint
from gflow.targets.slurm.target import SlurmTarget
from gflow.text.usage import cluster_usage_csv, cluster_usage_page, usage_csv, usage_page
from gflow.wire.answers.gpus import GpuHistoryAnswer, GpuPoint
from gflow.wire.answers.job_details import (
    ClusterUsage,
    OnNode,
    ProgressAnswer,
    ProgressPoint,
    UsageAnswer,
    Used,
)
from gflow.wire.encoding import key_label, rfc3339
from gflow.wire.queries import GpuHistoryQuery, UsageQuery

log = logging.getLogger("gflow.api")
# Most spans in the history of a GPU, and the seconds between its samples.
SPANS = 300
SAMPLE_S = 10


async def show_usage(request: Request) -> Response:
    """GPU usage of a job; with `csv`, every sample as CSV."""
    context, query = context_of(request), query_of(request, UsageQuery)
    job = existing_job(context, key_of(context, request))
    if job.target != LOCAL:
        data = await _remote_usage(request, job)
        if query.csv:
            return PlainTextResponse(cluster_usage_csv(data))
        return answer(request, lambda: data, lambda: cluster_usage_page(data))
    data = await usage_of(request, job)
    if query.csv:
        return PlainTextResponse(usage_csv(data.samples))
    return answer(request, lambda: data, lambda: usage_page(data))


async def _remote_usage(request: Request, job: Job) -> UsageAnswer:
    """Usage of a job on a cluster: on its nodes now, which takes a second or two, or of all of its run."""
    if job.is_array:
        raise Refused(f"job {job.label} is an array", hint=f"name one of its tasks: gjob usage {job.label}_3")
    if job.remote is None or not job.remote.id or not (job.state is JobState.RUNNING or job.is_final):
        raise Refused(
            f"job {job.label} has not run on {job.target}: its usage is known when it runs",
            hint=f"gjob show {job.label}",
        )
    if not may_ask_cluster(request, job):
        raise Forbidden(
            f"the usage of job {job.label} is for its owner: {job.target} is asked with their keys"
        )
    context, (uid, _) = context_of(request), caller(request)
    target = slurm_of(context.target, job.target, job.uid)
    nodes, ended = None, None
    asked = target, job.label, job.remote.id
    if job.is_final:
        ended = await while_connected(request, context.threads.run(uid, _read_accounting, *asked))
    else:
        nodes = await while_connected(request, context.threads.run(uid, _probe_nodes, *asked))
    return UsageAnswer(
        job=key_label(job.key),
        predicted_mib=job.spec.predicted_mib or None,
        samples=[],
        totals=[],
        nodes=nodes,
        ended=ended,
    )


def _read_accounting(target: SlurmTarget, label: str, id: str) -> ClusterUsage:
    result = target.slurm.usage_of(id)
    if result.unsure:
        raise Refused(f"{target.name} does not answer, so the usage of job {label} is unknown")
    if (found := parse_efficiency(result.text)) is not None:
        return found
    why = complaint(result.error) if result.error.strip() else "the accounting of Slurm has no run of it"
    raise Refused(f"the usage of job {label} on {target.name} is unknown: {why}", hint=f"gjob show {label}")


def _probe_nodes(target: SlurmTarget, label: str, id: str) -> list[OnNode]:
    probe = target.slurm.probe(id)
    nodes = parse_probe(probe.text) if probe.ok else []
    if nodes:
        return nodes
    if probe.unsure:
        raise Refused(f"{target.name} does not answer, so the usage of job {label} is unknown")
    why = f": {complaint(probe.error)}" if probe.error.strip() else ""
    raise Refused(
        f"the nodes of job {label} cannot be probed{why}", hint="it may just have ended: gjob show " + label
    )


async def usage_of(request: Request, job: Job) -> UsageAnswer:
    context, (uid, _) = context_of(request), caller(request)
    samples, totals = await while_connected(
        request, context.threads.run(uid, _read_samples, context, job.label)
    )
    return UsageAnswer(
        job=key_label(job.key),
        predicted_mib=job.spec.predicted_mib or None,
        samples=[_sample_view(one) for one in samples],
        totals=[_sample_view(one) for one in totals],
        nodes=None,
    )


def _read_samples(context: Context, label: str) -> tuple[list[OfJob], list[OfJob]]:
    try:
        return samples_of(context.settings.samples, label)
    except sqlite3.Error as error:
        log.warning("the GPU samples cannot be read: %s", error)
        return [], []


async def show_gpu_history(request: Request) -> Response:
    """Utilisation, memory, power and temperature of the GPUs over time, in at most about 300 spans."""
    context, query, (uid, _) = context_of(request), query_of(request, GpuHistoryQuery), caller(request)
    span = max(SAMPLE_S, int(query.hours * 3600 / SPANS) // SAMPLE_S * SAMPLE_S)
    since = time.time() - query.hours * 3600
    found = await while_connected(
        request, context.threads.run(uid, _read_gpus, context, since, span, query.gpu)
    )
    points = [
        GpuPoint(
            at=rfc3339(mean.at),
            gpu=gpu,
            busy=mean.busy,
            memory_mib=mean.memory_mib,
            power_w=mean.power_w,
            temperature=mean.heat,
        )
        for gpu, mean in found
    ]
    lines = "".join(f"{one.at} GPU {one.gpu}: {one.busy} %, {one.memory_mib} MiB\n" for one in points)
    return answer(request, lambda: GpuHistoryAnswer(span_s=span, points=points), lambda: lines)


def _read_gpus(context: Context, since: float, span: int, gpu: int | None) -> list[tuple[int, Mean]]:
    try:
        return gpu_means(context.settings.samples, since, span, gpu)
    except sqlite3.Error as error:
        log.warning("the GPU samples cannot be read: %s", error)
        return []


async def show_progress(request: Request) -> Response:
    """What a job reported over time: step, loss, samples per second, metrics."""
    context, (uid, _) = context_of(request), caller(request)
    job = existing_job(context, key_of(context, request))
    check(request, [job])
    points = await while_connected(request, context.threads.run(uid, _read_points, context, job.label))
    data = ProgressAnswer(job=key_label(job.key), points=[_point_view(one) for one in points])
    lines = "".join(f"{one.at} step {one.step} loss {one.loss}\n" for one in data.points)
    return answer(request, lambda: data, lambda: lines)


def _read_points(context: Context, label: str) -> list[Point]:
    try:
        return points_of(context.settings.progress_points, label)
    except sqlite3.Error as error:
        log.warning("the progress of job %s over time cannot be read: %s", label, error)
        return []


def _point_view(one: Point) -> ProgressPoint:
    return ProgressPoint(
        at=rfc3339(one.at),
        attempt=one.attempt,
        step=one.step,
        loss=one.loss,
        samples_per_s=one.samples_per_s or None,
        metrics=one.metrics,
    )


def _sample_view(one: OfJob) -> Used:
    """An interval of a job's run on one GPU, or the whole run."""
    mean = one.mean
    return Used(
        at=rfc3339(mean.at),
        gpu=one.gpu,
        span_s=mean.span,
        busy=mean.busy,
        busy_most=mean.busy_most,
        memory_mib=mean.memory_mib,
        power_w=mean.power_w,
        temperature=mean.heat,
        clock_mhz=mean.clock_mhz,
        slowed=throttle_reasons(mean.slowed),
    )
