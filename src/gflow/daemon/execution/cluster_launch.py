"""Jobs for Slurm clusters: checks at submission, previews of batch scripts, and launches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from gflow.core.ids import job_key
from gflow.core.model import DEFAULT_SPEC, LOCAL, ArrayProgress, Job, RemoteState, Spec
from gflow.core.task_set import parse_tasks
from gflow.daemon.execution.environment import activation_variables, block, job_variables
from gflow.daemon.execution.log_paths import slurm_path
from gflow.daemon.settings import Settings
from gflow.errors import Refused, unknown
from gflow.options.job_options import JOB
from gflow.targets.port import Launch
from gflow.targets.routing import Targets
from gflow.targets.slurm.commands import slurm_cli
from gflow.targets.slurm.commands.slurm_cli import advise
from gflow.targets.slurm.target import SlurmTarget
from gflow.targets.slurm.tracker import SlurmSubmission, build_script, environment_of
from gflow.wire.requests import ParsedJob

# Options that have an effect only on a cluster.
CLUSTER_OPTIONS = tuple([option for option in JOB if option.only_on == "cluster"])
UNREACHABLE = "the Slurm controller does not answer: the job is kept, and submitted as soon as it does"


def check_targets(settings: Settings, specs: Iterable[Spec]) -> None:
    """Refuse unknown targets, and options that the job's target does not support."""
    for spec in specs:
        name = spec.on or spec.overflow
        if not name:
            continue
        if name not in settings.clusters:
            raise unknown("target", name, [LOCAL, *settings.clusters])
        if settings.is_system:
            raise Refused(
                "the system-wide daemon runs jobs on this machine only: on Slurm they would run as root",
                hint="use a daemon of your own: gflowd up --private",
            )
        if spec.pty:
            raise Refused(f"--pty is for this machine: {name} has no terminal for gflow")
        if spec.shared:
            raise Refused(f"--shared is for GPUs of this machine, and {name} is a cluster")
        if spec.stop_when:
            raise Refused(f"--stop-when is for this machine: jobs on {name} report no progress to gflow")


def with_patience(settings: Settings, spec: Spec) -> Spec:
    """The spec with `overflow_after_s` from the settings of its target, unless the job sets it."""
    if not spec.overflow or spec.overflow_after_s is not None or spec.overflow not in settings.clusters:
        return spec
    patience = settings.clusters[spec.overflow].overflow_after_secs
    return msgspec.structs.replace(spec, overflow_after_s=patience)


def local_note(specs: Iterable[Spec]) -> str:
    """A note about cluster options of jobs for this machine; empty if there are none."""
    given = {
        option.name
        for spec in specs
        if not (spec.on or spec.overflow)
        for option in CLUSTER_OPTIONS
        if getattr(spec, option.field) != getattr(DEFAULT_SPEC, option.field)
    }
    names = ", ".join(f"--{option.name}" for option in CLUSTER_OPTIONS if option.name in given)
    return f"ignored: {names} (this is one machine)" if names else ""


def remote_launch(settings: Settings, job: Job, script: bytes | None, environ: bytes) -> Launch:
    """The launch of an attempt on a cluster. The cluster chooses the GPUs."""
    spec = job.spec
    variables = job_variables(job, None, None)
    log = slurm_path(settings, job, spec.output)
    return Launch(
        job=job,
        script=script,
        environ=environ,
        extra=block(variables) + activation_variables(spec, environ),
        log=log,
        error_log=slurm_path(settings, job, spec.error) if spec.error else log,
        log_cap=0,
        leases=(),
        uid=None,
    )


def scripts_of(settings: Settings, targets: Targets, number: int, jobs: Sequence[ParsedJob]) -> list[str]:
    """The batch scripts for these jobs, as a preview. The first job gets this number."""
    found = []
    for index, described in enumerate(jobs):
        if name := described.spec.on or described.spec.overflow:
            target = slurm_of(targets, name)
            launch = _preview(settings, described, number + index)
            submission = SlurmSubmission(launch, was_submitted=False)
            for candidate in submission.candidates:
                tag = submission.tag("preview", candidate.number)
                found.append(build_script(launch, candidate, target.cluster, target.folder, tag))
    return found


async def check_with_slurm(settings: Settings, targets: Targets, jobs: Sequence[ParsedJob]) -> str:
    """Ask Slurm whether it would accept these jobs. Returns a note for the user, or raises a refusal.

    One job of each kind is tested. After the first query without an answer no further one is made.
    """
    for described in _kinds(jobs):
        target = slurm_of(targets, described.spec.on or described.spec.overflow)
        if not target.slurm.is_here:
            raise Refused(
                f"{target.name} cannot be used from here: the daemon finds no sbatch on its PATH",
                hint="restart gflowd where Slurm's commands are, such as a login node: gflowd restart",
            )
        if target.is_down:
            return UNREACHABLE
        launch = _preview(settings, described, 1)
        for candidate in SlurmSubmission(launch, was_submitted=False).candidates:
            text = build_script(launch, candidate, target.cluster, target.folder, "preview")
            spec = described.spec
            answer = await asyncio.to_thread(
                target.slurm.submit, text, environment_of(launch), spec.cwd, spec.umask, test=True
            )
            if answer.unsure:
                return UNREACHABLE
            if not answer.ok and not target.is_shaky:
                raise await asyncio.to_thread(_refusal, target, spec, slurm_cli.complaint(answer.error))
    return ""


def _refusal(target: SlurmTarget, spec: Spec, complaint: str) -> Refused:
    cluster = target.cluster
    hint = advise(
        target.slurm,
        complaint,
        partition=spec.partition or cluster.partition,
        account=spec.project or cluster.account,
        qos=spec.qos or cluster.qos,
        constraint=spec.constraint or cluster.constraint,
    )
    return Refused(f"{target.name} would not take this job: {complaint}", hint=hint)


def kind_of(spec: Spec) -> tuple[object, ...]:
    """The fields on which notes about a job, and Slurm's answer for it, depend."""
    fields = tuple(getattr(spec, option.field) for option in CLUSTER_OPTIONS)
    where = spec.on or spec.overflow
    mail = bool(spec.notify_emails), bool(spec.notify_on)
    return where, spec.shape, spec.time_limit_s, spec.array, fields, spec.gpu_memory_from, mail


def _kinds(jobs: Sequence[ParsedJob], most: int = 4) -> list[ParsedJob]:
    """At most `most` jobs, one of each kind for which Slurm's answer may differ."""
    kinds: dict[tuple[object, ...], ParsedJob] = {}
    for job in jobs:
        spec = job.spec
        if name := spec.on or spec.overflow:
            kinds.setdefault((name, spec.shape, spec.time_limit_s, spec.array, spec.partition), job)
    return list(kinds.values())[:most]


def slurm_of(targets: Targets, name: str) -> SlurmTarget:
    """The cluster of this name."""
    target = targets.remote[name]
    assert isinstance(target, SlurmTarget)
    return target


def _preview(settings: Settings, described: ParsedJob, number: int) -> Launch:
    """The launch of a job that has not been submitted yet."""
    spec, blobs = described.spec, described.blobs
    job = Job(
        key=job_key(number),
        spec=spec,
        uid=0,
        user="",
        submitted_at=0.0,
        attempt=1,
        target=spec.on or spec.overflow,
        progress=ArrayProgress(parse_tasks(spec.array)) if spec.array else None,
        remote=RemoteState(),
    )
    script = blobs.get(spec.script, b"") if spec.script else None
    return remote_launch(settings, job, script, blobs.get(spec.environ, b""))
