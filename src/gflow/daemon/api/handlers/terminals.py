"""Routes for terminals, `gjob exec` and `gjob profile`. They return a path; the data bypasses the daemon."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import LOCAL, Job, JobState
from gflow.daemon.api.permissions import check
from gflow.daemon.api.request import caller, context_of, job_in_path, read
from gflow.daemon.api.response import answer
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import remote_launch, slurm_of
from gflow.daemon.loop.commands import AuditCommand
from gflow.errors import Forbidden, Refused
from gflow.options.job_options import Option
from gflow.options.values import read as read_option
from gflow.targets.port import Run
from gflow.targets.slurm.job_step import JobStep, step_script
from gflow.targets.slurm.remote_launch import launch_there
from gflow.wire.answers.job_details import ClusterStep, ExecAnswer, ProfileFolderAnswer, TerminalAnswer
from gflow.wire.encoding import key_label
from gflow.wire.requests import ExecRequest, JobRequest, check_command

# Retries while a job that has just started has no process yet, and their interval.
TRIES, RETRY_S = 100, 0.02
_TERM = Option("term", "name", "the terminal type")


async def show_path(request: Request) -> Response:
    """The socket of a job's terminal. Only the owner of the job and root can connect to it."""
    context = context_of(request)
    job = job_in_path(context, request)
    check(request, [job])
    has_one = job.state is JobState.RUNNING and job.spec.pty and not job.is_array
    path = context.target.terminal(Run(job.key, job.attempt)) if has_one else None
    data = TerminalAnswer(job_id=key_label(job.key), state=job.state.value, path=path)
    return answer(request, lambda: data, lambda: f"{path or ''}\n")


async def show_profile_folder(request: Request) -> Response:
    """The folder in which a running job takes requests for profiles: of jobs that use gflow.train."""
    job = job_in_path(context_of(request), request)
    check(request, [job])
    _check_runs(job)
    if job.target != LOCAL:
        raise Refused(
            f"job {job.label} runs on {job.target}, and profiles are made of jobs on this machine only",
            hint=f"gjob usage {job.label} shows what it uses there",
        )
    report = job.progress_report
    if report is None or not report.profile_dir or report.at < (job.started_at or 0.0):
        raise Refused(
            f"job {job.label} takes no requests for profiles: it has reported no step of gflow.train",
            hint="scripts that iterate run.batches of gflow.train can be profiled after their first step",
        )
    data = ProfileFolderAnswer(
        job_id=key_label(job.key), uid=job.uid, path=report.profile_dir, step=report.step
    )
    return answer(request, lambda: data, lambda: f"{data.path}\n")


async def execute(request: Request) -> Response:
    """Execute a command in a running job: in its environment, with its GPUs, as its owner."""
    context, (uid, origin) = context_of(request), caller(request)
    wanted = await read(request, ExecRequest)
    job = job_in_path(context, request)
    check(request, [job])
    if not request.scope["state"]["pid"]:
        raise Forbidden("commands can be executed in jobs only from the machine itself")
    check_command(JobRequest(command=wanted.command, cwd="/"))
    term = read_option(_TERM, wanted.term) if wanted.term else ""
    _check_runs(job)
    if job.target == LOCAL:
        made = ExecAnswer(await _start_command(context, job, wanted, term))
    else:
        made = ExecAnswer(None, await asyncio.to_thread(_cluster_step, context, job, wanted, term))
    await context.loop.run_command(
        AuditCommand("beside", f"job {job.label}: {wanted.command[0]!a:.60}", uid, origin)
    )
    return answer(request, lambda: made, lambda: f"{made.path or ''}\n", 201)


def _cluster_step(context: Context, job: Job, wanted: ExecRequest, term: str) -> ClusterStep:
    """The script that runs a command as a step of a job on a cluster. Blocks until the cluster answers."""
    target = slurm_of(context.target, job.target, job.uid)
    if job.remote is None or not job.remote.id:
        raise Refused(f"job {job.label} runs on {job.target}, and its Slurm job is not known yet")
    try:
        target.open_folder()
    except OSError as error:
        raise Refused(f"{target.name} does not answer: {error.strerror or error}") from None
    launch = launch_there(remote_launch(context.settings, job, None, b""), target.shared_folder)
    step = JobStep(
        id=job.remote.id,
        label=job.label,
        target=target.name,
        folder=launch.job.spec.cwd,
        stop_file=target.shared_folder.path(launch.run.name, "stop"),
        command=wanted.command,
        is_tty=wanted.tty,
        term=term,
    )
    return ClusterStep(
        target=target.name,
        uid=job.uid,
        script=step_script(step),
        host=target.cluster.host or None,
        ssh_folder=str(target.ssh.control_path.parent) if target.ssh is not None else None,
        slurm_conf=None if target.ssh is not None else target.slurm.conf,
    )


async def _start_command(context: Context, job: Job, wanted: ExecRequest, term: str) -> str:
    """Start the command and return its socket path. Retries while the job has no process yet."""
    for tries_left in range(TRIES, -1, -1):
        try:
            return context.executor.exec_command(job, tuple(wanted.command), term, is_tty=wanted.tty)
        except (FileNotFoundError, ProcessLookupError) as error:
            if not tries_left:
                why = "its process does not exist"
                raise Refused(f"no command can be executed in job {job.label}: {why}") from error
            await asyncio.sleep(RETRY_S)
        except OSError as error:
            raise Refused(
                f"no command can be executed in job {job.label}: {error.strerror or error}"
            ) from error
    raise AssertionError("the last try returns or raises")


def _check_runs(job: Job) -> None:
    if job.is_array:
        raise Refused(f"job {job.label} is an array", hint=f"name one of its tasks: {job.label}_1")
    if job.state is not JobState.RUNNING or job.stopping is not None:
        how = "being stopped" if job.stopping is not None else job.state.value
        raise Refused(f"job {job.label} does not run: it is {how}")
