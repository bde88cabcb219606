"""ETA of a job that waits on a Slurm cluster, and options that would start sooner, as Slurm reports them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from gflow.core.forecast.start_time import Start
from gflow.core.forecast.wait_report import Change, WaitReport
from gflow.core.lifecycle.update import override_spec
from gflow.core.model import Job, Spec
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import preview_submission, remote_launch, slurm_of
from gflow.targets.slurm.remote_launch import build_script, environment_of, launch_there
from gflow.targets.slurm.ssh.remote_slurm import RemoteSlurm
from gflow.targets.slurm.target import SlurmTarget

# Suggest an alternative only if it starts at least this much earlier.
MIN_GAIN_S = 120.0
MAX_PARTITIONS = 4
# Pending reasons of Slurm that are limits of an account or of a QOS.
LIMITED = re.compile("Assoc|QOS|Max")


class NoAnswer(Exception):
    """Slurm does not answer. Further queries are skipped, because a user waits."""


async def add_cluster_forecast(context: Context, job: Job, found: WaitReport) -> WaitReport:
    """The wait report with the start time and alternatives that Slurm reports. Changes nothing anywhere."""
    target = slurm_of(context.target, job.target, job.uid)
    if target.connection.is_down or job.remote is None:
        return found
    script = context.store.blob(job.spec.script) if job.spec.script else None
    try:
        return await context.threads.run(job.uid, _ask, context, target, job, script, found)
    except NoAnswer:
        return found


def _ask(
    context: Context, target: SlurmTarget, job: Job, script: bytes | None, found: WaitReport
) -> WaitReport:
    assert job.remote is not None
    answer = target.slurm.start_of(job.remote.id) if job.remote.id else ""
    if answer is None:
        raise NoAnswer
    expected = _parse_time(target, answer)
    start = None if expected is None else Start(expected, expected, expected)
    if LIMITED.match(job.reason.code):  # no other shape or partition avoids these
        limits = target.slurm.limits_of(job.remote.id)
        return msgspec.structs.replace(found, start=start, instead=[], limits=limits)
    if expected is None:
        expected = _test_submit(context, target, job, script)
    alternatives = []
    partitions = list(dict.fromkeys(one.partition for one in target.slurm.sizes()))
    for change in _alternatives(job.spec, partitions):
        changed = msgspec.structs.replace(job, spec=override_spec(job, job.spec, dict(change)))
        begins = _test_submit(context, target, changed, script)
        if begins is not None and (expected is None or begins + MIN_GAIN_S < expected):
            alternatives.append(change)
    return msgspec.structs.replace(found, start=start, instead=alternatives)


def _alternatives(spec: Spec, partitions: list[str]) -> Iterator[Change]:
    """Changes to the same number of GPUs in another shape, another partition, or half the time limit."""
    if spec.race:
        return
    total = spec.nodes * spec.gpus
    for nodes, gpus in {(1, total), (total, 1)} - {(spec.nodes, spec.gpus)} if total > 1 else ():
        yield {"nodes": nodes, "gpus": gpus}
    for name in [name for name in partitions if name != spec.partition][:MAX_PARTITIONS]:
        yield {"partition": name}
    if spec.time_limit_s >= 1200:
        yield {"time_limit_s": spec.time_limit_s // 120 * 60}


def _test_submit(context: Context, target: SlurmTarget, job: Job, script: bytes | None) -> float | None:
    """When Slurm would start this job if it were submitted now (sbatch --test-only); None if unknown."""
    launch = remote_launch(context.settings, job, script, b"")
    candidate = preview_submission(launch, target.slurm.array_limit).candidates[0]
    launch = launch_there(launch, target.shared_folder)
    text = build_script(launch, candidate, target.cluster, target.folder, "preview")
    spec = launch.job.spec
    answer = target.slurm.submit(text, environment_of(launch), spec.cwd, spec.umask, test=True)
    if answer.unsure:
        raise NoAnswer
    return _parse_time(target, answer.text) if answer.ok else None


def _parse_time(target: SlurmTarget, text: str) -> float | None:
    """Parse a time that Slurm printed: in the machine's time zone; from elsewhere in UTC, by its clock."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if isinstance(target.slurm, RemoteSlurm):
        return found.replace(tzinfo=UTC).timestamp() - target.slurm.ahead_s
    return found.timestamp()
