"""When a job starts that waits on a cluster, and what would start sooner: as the cluster itself says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import datetime

import msgspec

from gflow.core.forecast.start_time import Start
from gflow.core.forecast.wait_report import WaitReport
from gflow.core.model import Job, Spec
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import distant_launch, slurm_of
from gflow.targets.slurm.target import SlurmTarget
from gflow.targets.slurm.tracker import SlurmSubmission, environment_of, text_of

# So much sooner another way must be in order to be worth a word.
WORTH_S = 120.0
MOST_PARTITIONS = 4
# Reasons of Slurm's that are limits of an account or of a quality of service.
LIMITED = re.compile("Assoc|QOS|Max")


class Silence(Exception):
    """Slurm does not answer: nor would it answer the questions after this one, and somebody waits."""


async def foreseen(context: Context, job: Job, found: WaitReport) -> WaitReport:
    """The outlook with what Slurm expects. Nothing is changed, there or here."""
    target = slurm_of(context.target, job.target)
    if target.is_down or job.abroad is None:
        return found
    script = context.store.blob(job.spec.script) if job.spec.script else None
    try:
        return await asyncio.to_thread(_ask, context, target, job, script, found)
    except Silence:
        return found


def _ask(
    context: Context, target: SlurmTarget, job: Job, script: bytes | None, found: WaitReport
) -> WaitReport:
    assert job.abroad is not None
    said = target.slurm.start_of(job.abroad.id) if job.abroad.id else ""
    if said is None:
        raise Silence
    expected = _moment(said)
    start = None if expected is None else Start(expected, expected, expected)
    if LIMITED.match(job.reason or ""):  # which no other shape or partition gets around
        limits = target.slurm.limits_of(job.abroad.id)
        return msgspec.structs.replace(found, start=start, instead=[], limits=limits)
    if expected is None:
        expected = _tried(context, target, job, script)
    instead = []
    partitions = list(dict.fromkeys(one.partition for one in target.slurm.sizes()))
    for words, spec in _other_ways(job.spec, partitions):
        begins = _tried(context, target, msgspec.structs.replace(job, spec=spec), script)
        if begins is not None and (expected is None or begins + WORTH_S < expected):
            instead.append(words)
    return msgspec.structs.replace(found, start=start, instead=instead)


def _other_ways(spec: Spec, partitions: list[str]) -> Iterator[tuple[str, Spec]]:
    """Other options that mean as many GPUs, or another partition, or less time."""
    if spec.race:
        return
    total = spec.nodes * spec.gpus
    for nodes, gpus in {(1, total), (total, 1)} - {(spec.nodes, spec.gpus)} if total > 1 else ():
        yield f"--nodes {nodes} --gpus {gpus}", msgspec.structs.replace(spec, nodes=nodes, gpus=gpus)
    for name in [name for name in partitions if name != spec.partition][:MOST_PARTITIONS]:
        yield f"--partition {name}", msgspec.structs.replace(spec, partition=name)
    if spec.time_limit_s >= 1200:
        half = spec.time_limit_s // 120
        yield f"--time {half}", msgspec.structs.replace(spec, time_limit_s=half * 60)


def _tried(context: Context, target: SlurmTarget, job: Job, script: bytes | None) -> float | None:
    """When Slurm would start this if it came now; None: never, or it does not say."""
    launch = distant_launch(context.settings, job, script, b"")
    bid = SlurmSubmission(launch, was_submitted=False).candidates[0]
    text = text_of(launch, bid, target.cluster, target.folder, "preview")
    said = target.slurm.submit(text, environment_of(launch), job.spec.cwd, job.spec.umask, test=True)
    if said.unsure:
        raise Silence
    return _moment(said.text) if said.ok else None


def _moment(text: str) -> float | None:
    """Slurm's time, in the machine's zone."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
