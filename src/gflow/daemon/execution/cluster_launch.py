"""Jobs for Slurm clusters: checks at submission, previews of batch scripts, and launches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gflow.core.ids import job_key
from gflow.core.model import DEFAULT_SPEC, LOCAL, ArrayProgress, Job, RemoteState, Spec
from gflow.core.task_set import parse_tasks
from gflow.daemon.execution.environment import activation_variables, block, job_variables, named_variables
from gflow.daemon.execution.local_container import check_container
from gflow.daemon.execution.log_paths import slurm_path
from gflow.daemon.execution.resume_command import with_resume_args
from gflow.daemon.settings import Settings
from gflow.errors import Refused, unknown
from gflow.options.job_options import JOB
from gflow.options.sbatch_words import is_local, name_of
from gflow.options.slurm import check_local_words
from gflow.targets.port import Launch
from gflow.targets.routing import Targets
from gflow.targets.slurm.array_parts import USUAL_LIMIT
from gflow.targets.slurm.commands import slurm_cli
from gflow.targets.slurm.commands.refusals import Refusal, classify
from gflow.targets.slurm.commands.slurm_cli import advise
from gflow.targets.slurm.remote_launch import build_script, environment_of, launch_there
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.submission import SlurmSubmission
from gflow.targets.slurm.target import SlurmTarget
from gflow.wire.requests import ParsedJob

# Options that have an effect only on a cluster.
CLUSTER_OPTIONS = tuple([option for option in JOB if option.only_on == "cluster"])
UNREACHABLE = "the Slurm controller does not answer: the job is kept, and submitted as soon as it does"
NO_CONNECTION = "{} is unreachable: the job is kept, and submitted as soon as it answers"

NOT_NOW = "{} does not take the job now ({}): the job is kept, and submitted as soon as it does"


def check_targets(settings: Settings, specs: Iterable[Spec]) -> None:
    """Refuse unknown targets, and options that the job's target does not support."""
    for spec in specs:
        name = spec.on or spec.overflow
        check_container(settings, spec)
        if not name:
            continue
        if name not in settings.clusters:
            raise unknown("target", name, [LOCAL, *settings.clusters])
        if settings.is_system and not settings.clusters[name].host:
            raise Refused(
                f"the system-wide daemon reaches clusters over SSH only, and {name} has no host",
                hint="use a daemon of your own where sbatch is: gflowd up --private",
            )
        if settings.clusters[name].host and (spec.venv or spec.conda_env):
            raise Refused(
                f"--venv and --conda-env are folders of this machine, and {name} is elsewhere",
                hint=f"activate an environment there: setup = ['source …/bin/activate'] in [targets.{name}]",
            )
        _check_paths(settings.clusters[name], spec)
        if spec.pty:
            raise Refused(f"--pty is for this machine: {name} has no terminal for gflow")
        if spec.shared:
            raise Refused(f"--shared is for GPUs of this machine, and {name} is a cluster")
        if spec.stop_when:
            raise Refused(f"--stop-when is for jobs of this machine, and {name} is a cluster")


def _check_paths(cluster: Cluster, spec: Spec) -> None:
    """Refuse paths with a line break: sbatch reads its options line by line."""
    cwd = "" if cluster.host and not spec.sync else spec.cwd
    for path in (cwd, spec.chdir, spec.output, spec.error):
        if "\n" in path:
            raise Refused(f"jobs on a cluster cannot have a path with a line break: {path!a:.200}")


def with_patience(settings: Settings, spec: Spec) -> Spec:
    """The spec with `overflow_after_s` from the settings of its target, unless the job sets it."""
    if not spec.overflow or spec.overflow_after_s is not None or spec.overflow not in settings.clusters:
        return spec
    patience = settings.clusters[spec.overflow].overflow_after_secs
    return msgspec.structs.replace(spec, overflow_after_s=patience)


def with_words_for_target(spec: Spec) -> Spec:
    """The spec with the words for sbatch that its target needs, and the fields that differ there."""
    if not spec.slurm:
        return spec
    if not (spec.on or spec.overflow):
        check_local_words(spec.slurm)
        return msgspec.structs.replace(spec, slurm=tuple(w for w in spec.slurm if not is_local(w)))
    if not spec.on:
        check_local_words(spec.slurm)
        return spec
    names = set(map(name_of, spec.slurm))
    fields: dict[str, Any] = {}
    if "gpus" in names:  # of the whole job: shown as on each node
        fields["gpus"] = -(-spec.gpus // spec.nodes)
    if "mail-user" in names:  # Slurm sends the mail
        fields |= {"notify_emails": (), "notify_on": ()}
    return msgspec.structs.replace(spec, **fields) if fields else spec


def local_note(specs: Iterable[Spec]) -> str:
    """A note about cluster options of jobs for this machine; empty if there are none."""
    here = [spec for spec in specs if not (spec.on or spec.overflow)]
    given = [
        f"--{name}"
        for option in CLUSTER_OPTIONS
        for spec in here
        if getattr(spec, option.field) != getattr(DEFAULT_SPEC, option.field)
        for name in (map(name_of, spec.slurm) if option.name == "slurm" else (option.name,))
    ]
    names = ", ".join(dict.fromkeys(given))
    return f"ignored: {names} (this is one machine)" if names else ""


def remote_launch(
    settings: Settings, job: Job, script: bytes | None, environ: bytes, attempt: int = 0
) -> Launch:
    """The launch of an attempt on a cluster. The cluster chooses the GPUs.

    `attempt`: which of those that began it would be; 0: as the number of the attempt says.
    """
    attempt = attempt or job.attempt
    cluster, here = settings.clusters.get(job.target), job.spec.cwd
    activation = activation_variables(job.spec, environ)
    if cluster is not None and cluster.host:
        cwd = job.spec.cwd if job.spec.sync else _folder_there(cluster, job.spec)
        job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, cwd=cwd))
        environ, activation = named_variables(environ), b""
    spec = job.spec
    variables = job_variables(job, None, None)
    variables |= {"GFLOW_ATTEMPT": str(attempt), "GFLOW_RESTART_COUNT": str(attempt - 1)}
    log = slurm_path(settings, job, spec.output)
    return Launch(
        job=with_resume_args(job, is_remote=True) if attempt > 1 else job,
        script=script,
        environ=environ,
        extra=block(variables) + activation,
        log=log,
        error_log=slurm_path(settings, job, spec.error) if spec.error else log,
        log_cap=0,
        leases=(),
        uid=None,
        here=here,
    )


def _folder_there(cluster: Cluster, spec: Spec) -> str:
    """The working folder on a cluster over SSH of a job whose files are not sent."""
    usual = cluster.chdir or "~"
    return spec.chdir if spec.chdir.startswith("~") else os.path.normpath(os.path.join(usual, spec.chdir))


def folder_shown(settings: Settings, targets: Targets, job: Job) -> str:
    """The working folder of a job on a cluster, if it differs from the one here: `login:/home/ann`."""
    name = job.target if job.target != LOCAL else job.spec.on
    if name not in targets.remote.names:
        return ""
    target = slurm_of(targets, name, job.uid)
    launch = remote_launch(settings, msgspec.structs.replace(job, target=name), None, b"")
    there = launch_there(launch, target.shared_folder).job.spec.cwd
    host = f"{target.cluster.host}:" if target.cluster.host else ""
    return f"{host}{there}" if host or there != job.spec.cwd else ""


def scripts_of(
    settings: Settings, targets: Targets, uid: int, number: int, jobs: Sequence[ParsedJob]
) -> list[str]:
    """The batch scripts for these jobs of a user, as a preview. The first job gets this number."""
    found = []
    for index, described in enumerate(jobs):
        if name := described.spec.on or described.spec.overflow:
            target = slurm_of(targets, name, uid)
            launch = _preview(settings, described, number + index)
            submission = preview_submission(launch, target.slurm.array_limit)
            for candidate in submission.candidates:
                tag = submission.tag("preview", candidate.number)
                there = launch_there(launch, target.shared_folder)
                found.append(build_script(there, candidate, target.cluster, target.folder, tag))
    return found


async def check_with_slurm(settings: Settings, targets: Targets, uid: int, jobs: Sequence[ParsedJob]) -> str:
    """Ask Slurm whether it would accept these jobs of a user. Returns a note, or raises a refusal.

    One job of each kind is tested. After the first query without an answer no further one is made.
    """
    for described in _kinds(jobs):
        target = slurm_of(targets, described.spec.on or described.spec.overflow, uid)
        if not target.slurm.is_here:
            raise Refused(
                f"{target.name} cannot be used from here: the daemon finds no sbatch on its PATH",
                hint="restart gflowd where Slurm's commands are, such as a login node: gflowd restart",
            )
        if target.connection.is_down:
            return UNREACHABLE if target.ssh is None else NO_CONNECTION.format(target.name)
        if target.ssh is not None:  # a submission does not wait for a connection
            continue
        launch = _preview(settings, described, 1)
        is_large = SlurmSubmission(launch, was_submitted=False).last_task >= USUAL_LIMIT
        limit = await asyncio.to_thread(target.slurm.max_array_size) if is_large else 0
        submission = preview_submission(launch, limit)
        for candidate in submission.candidates[:1] if submission.is_split else submission.candidates:
            text = build_script(launch, candidate, target.cluster, target.folder, "preview")
            spec = described.spec
            answer = await asyncio.to_thread(
                target.slurm.submit, text, environment_of(launch), spec.cwd, spec.umask, test=True
            )
            if not answer.ok and _is_wrong(spec, answer.error):
                continue
            if answer.unsure:
                return UNREACHABLE
            if not answer.ok and classify(answer.error) is Refusal.PASSING:
                return NOT_NOW.format(target.name, slurm_cli.complaint(answer.error))
            if not answer.ok and not target.connection.is_shaky:
                raise await asyncio.to_thread(_refusal, target, spec, slurm_cli.complaint(answer.error))
    return ""


def preview_submission(launch: Launch, array_limit: int) -> SlurmSubmission:
    """The submission of a job, in parts if it is an array that exceeds this MaxArraySize (0: not known)."""
    submission = SlurmSubmission(launch, was_submitted=False)
    submission.divide(array_limit or USUAL_LIMIT)
    return submission


def _is_wrong(spec: Spec, complaint: str) -> bool:
    """Whether sbatch may accept the job: --test-only refuses a --nodelist that names some of its nodes."""
    return "node configuration" in complaint and any(name_of(word) == "nodelist" for word in spec.slurm)


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
            kinds.setdefault(
                (name, spec.shape, spec.time_limit_s, spec.array, spec.partition, spec.slurm), job
            )
    return list(kinds.values())[:most]


def slurm_of(targets: Targets, name: str, uid: int) -> SlurmTarget:
    """The cluster of this name, for jobs of this user."""
    target = targets.remote.of(name, uid)
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
