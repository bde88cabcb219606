"""Routes for terminals and `gjob exec`. They return a socket path; the data bypasses the daemon."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.model import Job, JobState
from gflow.daemon.api.permissions import check
from gflow.daemon.api.request import caller, context_of, job_in_path, read
from gflow.daemon.api.response import answer
from gflow.daemon.context import Context
from gflow.daemon.loop.commands import AuditCommand
from gflow.errors import Forbidden, Refused
from gflow.options.job_options import Option
from gflow.options.values import read as read_option
from gflow.targets.port import Run
from gflow.wire.answers.job_details import ExecAnswer, TerminalAnswer
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
    path = await _start_command(context, job, wanted, term)
    await context.loop.run_command(
        AuditCommand("beside", f"job {job.label}: {wanted.command[0]!a:.60}", uid, origin)
    )
    return answer(request, lambda: ExecAnswer(path), lambda: f"{path}\n", 201)


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
