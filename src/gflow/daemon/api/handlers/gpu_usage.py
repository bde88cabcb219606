"""GPU usage of a job: recorded samples, or a probe of its nodes for a job on a cluster."""

from __future__ import annotations

import logging
import sqlite3

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gflow.core.model import LOCAL, Job, JobState
from gflow.daemon.api.handlers.gpus import throttle_reasons
from gflow.daemon.api.request import caller, context_of, existing_job, key_of, query_of, while_connected
from gflow.daemon.api.response import answer
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import slurm_of
from gflow.errors import Refused
from gflow.store.samples import OfJob, samples_of
from gflow.targets.slurm.commands.node_usage import parse_probe
from gflow.targets.slurm.commands.slurm_cli import complaint
from gflow.targets.slurm.target import SlurmTarget
from gflow.text.usage import nodes_csv, nodes_page, usage_csv, usage_page
from gflow.wire.answers.job_details import OnNode, UsageAnswer, Used
from gflow.wire.encoding import key_label, rfc3339
from gflow.wire.queries import UsageQuery

log = logging.getLogger("gflow.api")


async def show_usage(request: Request) -> Response:
    """GPU usage of a job; with `csv`, every sample as CSV."""
    context, query = context_of(request), query_of(request, UsageQuery)
    job = existing_job(context, key_of(context, request))
    if job.target != LOCAL:
        data = await _remote_usage(request, job)
        if query.csv:
            return PlainTextResponse(nodes_csv(data.nodes or []))
        return answer(request, lambda: data, lambda: nodes_page(data.nodes or []))
    data = await usage_of(request, job)
    if query.csv:
        return PlainTextResponse(usage_csv(data.samples))
    return answer(request, lambda: data, lambda: usage_page(data))


async def _remote_usage(request: Request, job: Job) -> UsageAnswer:
    """Current usage of a job on a cluster. Probes its nodes, which takes a second or two."""
    if job.is_array:
        raise Refused(f"job {job.label} is an array", hint=f"name one of its tasks: gjob usage {job.label}_3")
    if job.state is not JobState.RUNNING or job.remote is None or not job.remote.id:
        raise Refused(
            f"job {job.label} is not running: its usage on {job.target} is known only while it runs",
            hint=f"gjob show {job.label}",
        )
    context, (uid, _) = context_of(request), caller(request)
    target = slurm_of(context.target, job.target)
    nodes = await while_connected(
        request, context.threads.run(uid, _probe_nodes, target, job.label, job.remote.id)
    )
    return UsageAnswer(
        job=key_label(job.key),
        predicted_mib=job.spec.predicted_mib or None,
        samples=[],
        totals=[],
        nodes=nodes,
    )


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
