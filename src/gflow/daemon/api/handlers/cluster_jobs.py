"""Routes that ask a cluster: a person's Slurm jobs, also those that gflow did not submit; the partitions."""

from __future__ import annotations

from typing import Literal, cast

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import LOCAL
from gflow.daemon.api.request import caller, context_of, parse_number, query_of, while_connected
from gflow.daemon.api.response import answer
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import slurm_of
from gflow.errors import Refused, unknown
from gflow.targets.slurm.commands.cluster_info import Partition, parse_partitions
from gflow.targets.slurm.commands.queue_listing import LISTING_FORMAT, ListedJob, parse_listing, submitter_of
from gflow.targets.slurm.commands.slurm_cli import complaint
from gflow.targets.slurm.target import SlurmTarget
from gflow.text.table import Sheet
from gflow.wire.answers.daemon import ClusterJobsAnswer, ClusterJobView, PartitionsAnswer, PartitionView
from gflow.wire.queries import ClusterJobsQuery, PartitionsQuery

PARTITION_HEADER = ("PARTITION", "NODES", "IDLE", "DOWN", "GPUS", "FREE", "TYPE", "CPUS", "MEMORY", "TIME")
HEADER = ("SLURMID", "NAME", "STATE", "TIME", "NODES", "NODELIST(REASON)", "BY")
# Columns of the table that may be cut: the name, then the nodes.
CUTTABLE = ((1,), (5,))


async def list_cluster_jobs(request: Request) -> Response:
    """The Slurm jobs of the caller on a cluster that wait or run: one squeue."""
    context, query, (uid, _) = context_of(request), query_of(request, ClusterJobsQuery), caller(request)
    target = _find(context, request.path_params["target"], uid)
    numbers = _numbers(context, target.name, uid)
    found = await while_connected(request, context.threads.run(uid, _read_jobs, target, numbers))
    if query.others:
        found.jobs = [one for one in found.jobs if one.submitted_by != "gflow"]
    width = parse_number("width", query.width or "0", 0)
    return answer(request, lambda: found, lambda: _page(found, width, is_section=query.others))


async def list_partitions(request: Request) -> Response:
    """The partitions of a cluster, with nodes and GPUs that are free now: one sinfo, as the caller."""
    context, query, (uid, _) = context_of(request), query_of(request, PartitionsQuery), caller(request)
    target = _find(context, request.path_params["target"], uid)
    found = await while_connected(request, context.threads.run(uid, _read_partitions, target))
    width = parse_number("width", query.width or "0", 0)
    return answer(request, lambda: found, lambda: _partitions_page(found, width))


def _read_partitions(target: SlurmTarget) -> PartitionsAnswer:
    if not target.slurm.is_here:
        raise Refused(f"{target.name} cannot be asked: the daemon finds no sinfo on its PATH")
    result = target.slurm.list_nodes()
    if not result.ok:
        raise Refused(f"{target.name} does not answer: {complaint(result.error)}")
    return PartitionsAnswer(
        target=target.name, partitions=list(map(_partition_view, parse_partitions(result.text)))
    )


def _partition_view(one: Partition) -> PartitionView:
    return PartitionView(
        name=one.name,
        is_default=one.is_default,
        time_limit=one.time_limit or None,
        nodes=one.nodes,
        idle_nodes=one.idle,
        unusable_nodes=one.unusable,
        cpus_per_node=one.cpus,
        memory_mib_per_node=one.memory_mib,
        gpus=one.gpus,
        free_gpus=one.gpus_free,
        gpu_types=list(one.gpu_types),
    )


def _partitions_page(found: PartitionsAnswer, width: int) -> str:
    """A line for each partition; CPUS and MEMORY are those of a node."""
    sheet = Sheet(PARTITION_HEADER)
    for one in found.partitions:
        name = f"{one.name}*" if one.is_default else one.name
        numbers = (one.nodes, one.idle_nodes, one.unusable_nodes, one.gpus, one.free_gpus)
        memory = f"{one.memory_mib_per_node // 1024} GiB"
        kinds = ",".join(one.gpu_types) or "-"
        sheet.add((name, *map(str, numbers), kinds, str(one.cpus_per_node), memory, one.time_limit or "-"))
    return "".join(sheet.lines(width, ((0,),)))


def _find(context: Context, name: str, uid: int) -> SlurmTarget:
    clusters = context.settings.clusters
    if name == LOCAL:
        raise Refused("local is this machine, not a cluster", hint="gqueue --target local lists its jobs")
    if name not in clusters:
        raise unknown("target", name, [LOCAL, *clusters])
    if name not in context.target.remote.names:
        raise Refused(
            f"the system-wide daemon does not use {name}: it has no host",
            hint="squeue --me lists your Slurm jobs",
        )
    return slurm_of(context.target, name, uid)


def _numbers(context: Context, name: str, uid: int) -> dict[str, str]:
    """The labels of the user's jobs there, by Slurm's number. Costs the jobs that clusters have."""
    state, is_shared = context.loop.state, context.settings.is_system
    jobs = [job for key in state.remote.jobs if (job := state.jobs[key]).uid == uid or not is_shared]
    here = [job for job in jobs if job.target == name and job.remote is not None and job.remote.id]
    return {job.remote.id.partition("_")[0]: str(job.number) for job in here if job.remote is not None}


def _read_jobs(target: SlurmTarget, numbers: dict[str, str]) -> ClusterJobsAnswer:
    if not target.slurm.is_here:
        raise Refused(f"{target.name} cannot be asked: the daemon finds no squeue on its PATH")
    try:
        daemon = target.daemon_id()
    except OSError as error:
        raise Refused(f"{target.name} does not answer: {error.strerror or error}") from None
    result = target.slurm.list_active(LISTING_FORMAT)
    if not result.ok:
        raise Refused(f"{target.name} does not answer: {complaint(result.error)}")
    jobs = [_view(one, daemon, numbers) for one in parse_listing(result.text)]
    return ClusterJobsAnswer(target=target.name, user=target.slurm.user, jobs=jobs)


def _view(one: ListedJob, daemon: str, numbers: dict[str, str]) -> ClusterJobView:
    by, label = submitter_of(one, daemon, numbers)
    waits = one.place.startswith("(")
    return ClusterJobView(
        id=one.id,
        name=one.name,
        state=one.state,
        time=one.time,
        time_limit=one.time_limit or None,
        nodes=one.nodes,
        node_list=None if waits else one.place or None,
        reason=one.place.strip("()") or None if waits else None,
        partition=one.partition or None,
        gres=one.gres or None,
        submitted_by=cast(Literal["gflow", "other_gflow", "slurm"], by),
        job=int(label) if label.isdecimal() else label or None,
    )


def _page(found: ClusterJobsAnswer, width: int, *, is_section: bool) -> str:
    """The table; as a section below the jobs of gflow, with a heading, and empty without jobs."""
    if is_section and not found.jobs:
        return ""
    sheet = Sheet(HEADER)
    for one in found.jobs:
        where = one.node_list or (f"({one.reason})" if one.reason else "")
        by = f"job {one.job}" if one.job is not None else SUBMITTERS[one.submitted_by]
        sheet.add((one.id, one.name, one.state, one.time, str(one.nodes), where, by))
    heading = f"\nOther Slurm jobs of {found.user} on {found.target}, which gflow does not change:\n"
    return (heading if is_section else "") + "".join(sheet.lines(width, CUTTABLE))


SUBMITTERS = {"gflow": "gflow", "other_gflow": "another gflow", "slurm": "sbatch"}
