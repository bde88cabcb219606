"""Routes about targets: this machine and the clusters, their jobs and connections; files of jobs there."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import LOCAL, JobState
from gflow.daemon.api.handlers.queue import count_jobs
from gflow.daemon.api.permissions import check
from gflow.daemon.api.request import caller, context_of, job_in_path
from gflow.daemon.api.response import answer
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import remote_launch, slurm_of
from gflow.errors import Refused
from gflow.targets.slurm.files.result_fetch import fetch_order
from gflow.targets.slurm.remote_launch import launch_there
from gflow.targets.slurm.target import SlurmTarget
from gflow.text.table import Sheet
from gflow.wire.answers.daemon import TargetsAnswer, TargetView
from gflow.wire.answers.job_details import JobFilesAnswer
from gflow.wire.encoding import key_label, rfc3339


async def list_targets(request: Request) -> Response:
    """This machine and the clusters: jobs there, and whether the controller answers."""
    found = target_views(context_of(request), caller(request)[0])
    return answer(request, lambda: TargetsAnswer(found), lambda: _page(found))


async def show_files(request: Request) -> Response:
    """Where the files of a job on a cluster are, there and here: for `gjob fetch`."""
    context = context_of(request)
    job = job_in_path(context, request)
    check(request, [job])
    if job.target not in context.target.remote.names:
        raise Refused(f"job {job.label} is not on a cluster: its files are in {job.spec.cwd!a}")
    target = slurm_of(context.target, job.target, job.uid)
    try:
        await context.threads.run(job.uid, target.open_folder)
    except OSError as error:
        raise Refused(f"{target.name} does not answer: {error.strerror or error}") from None
    launch = remote_launch(context.settings, job, None, b"")
    there = launch_there(launch, target.shared_folder).job.spec.cwd
    if there == launch.here:
        raise Refused(f"job {job.label} ran in {there!a}, which this machine sees: there is nothing to fetch")
    order = fetch_order(job, there, launch.here, job.spec.outputs)
    data = JobFilesAnswer(
        job_id=key_label(job.key),
        uid=job.uid,
        target=target.name,
        host=target.cluster.host or None,
        ssh_folder=str(target.ssh.control_path.parent) if target.ssh is not None else None,
        there=there,
        here=launch.here,
        snapshot=order.snapshot or None,
        below=order.below,
        snapshots=str(target.user.snapshots if target.user else context.settings.snapshots),
        outputs=list(order.patterns),
        started_at=order.started_at,
    )
    return answer(request, lambda: data, lambda: f"{there}\n")


def unreachable_clusters(context: Context, uid: int) -> list[str]:
    """A sentence about each cluster that does not answer, as this user reaches it."""
    clusters = (slurm_of(context.target, name, uid) for name in context.target.remote.names)
    return [one.connection.unreachable for one in clusters if one.connection.unreachable]


def target_views(context: Context, uid: int) -> list[TargetView]:
    """Every target as this user reaches it, this machine first. Costs the jobs that clusters have."""
    state = context.loop.state
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for key in state.remote.jobs | state.remote.pending:
        job = state.jobs[key]
        if job.progress is None:
            (running if job.state is JobState.RUNNING else waiting)[job.target] += 1
    here = sum(job.target == LOCAL for job in state.running.values())
    rest = sum(count_jobs(state)) - here - running.total() - waiting.total()
    clusters = (
        _cluster_view(slurm_of(context.target, name, uid), running[name], waiting[name])
        for name in context.target.remote.names
    )
    return [TargetView(name=LOCAL, state="here", running=here, waiting=rest), *clusters]


def _cluster_view(target: SlurmTarget, running: int, waiting: int) -> TargetView:
    link, cluster = target.connection, target.cluster
    view = TargetView(
        name=target.name,
        state="answers" if link.answered_at else "unused",
        running=running,
        waiting=waiting,
        answered_at=rfc3339(link.answered_at or None),
        error=link.error or None,
        partition=cluster.partition or None,
        account=cluster.account or None,
        host=cluster.host or None,
        control_path=str(target.ssh.control_path) if target.ssh is not None else None,
    )
    if not target.slurm.is_here:
        view.state, view.error = "no_commands", "the daemon finds no sbatch on its PATH"
    elif link.is_down:
        view.state = "down"
    return view


def _page(views: list[TargetView]) -> str:
    sheet = Sheet(("TARGET", "STATE", "RUNNING", "WAITING", "ANSWERED", "ERROR"))
    for one in views:
        counts = (str(one.running), str(one.waiting))
        sheet.add((one.name, one.state, *counts, one.answered_at or "-", one.error or "-"))
    return "".join(sheet.lines())
