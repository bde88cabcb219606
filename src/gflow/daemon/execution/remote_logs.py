"""Logs of jobs on a cluster that is reached by SSH: requests for the copies here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from gflow.core.model import Job
from gflow.daemon.context import Context
from gflow.daemon.execution.cluster_launch import remote_launch, slurm_of
from gflow.daemon.execution.log_paths import log_path
from gflow.daemon.settings import Settings
from gflow.targets.routing import Targets
from gflow.targets.slurm.ssh.log_copies import Log, LogCopies

# Seconds for which a request for a log waits for the cluster.
PATIENCE_S = 20.0


async def refresh_log(context: Context, job: Job) -> str:
    """Bring the copy of a job's log up to date, and follow the log while the job may write to it.

    Returns at once for jobs of this machine, and if the cluster does not answer; then with a note about it.
    """
    found = _log_of(context.settings, context.target, job)
    if found is None:
        return ""
    copies, log, is_down = found
    note = f"{job.target} does not answer: this is the copy of the log that is here"
    if not job.is_final:
        copies.follow(log)
    if is_down:
        return note
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[bool] = asyncio.Queue()
    copies.fetch(log, lambda is_complete: _call_in(loop, lambda: answers.put_nowait(is_complete)))
    try:
        return "" if await asyncio.wait_for(answers.get(), PATIENCE_S) else note
    except TimeoutError:
        return note


def follow_log(context: Context, job: Job) -> None:
    """Go on following the log of a job."""
    found = _log_of(context.settings, context.target, job)
    if found is not None and not job.is_final:
        found[0].follow(found[1])


def fetch_at_end(settings: Settings, targets: Targets, job: Job, done: Callable[[], None]) -> bool:
    """Fetch the rest of the log of a job that has ended, then call `done` in the loop. False: no need to."""
    found = _log_of(settings, targets, job)
    if found is None:
        return False
    copies, log, _ = found
    copies.end(log)
    loop = asyncio.get_running_loop()
    copies.fetch(log, lambda _: _call_in(loop, done))
    return True


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the next daemon finds the end again
        loop.call_soon_threadsafe(call)


def _log_of(settings: Settings, targets: Targets, job: Job) -> tuple[LogCopies, Log, bool] | None:
    """The copies of the job's cluster, its log, and whether the cluster is down; None: the log is here."""
    if job.target not in targets.remote.names or job.is_array or not job.attempt:
        return None
    target = slurm_of(targets, job.target, job.uid)
    if target.logs is None:
        return None
    launch = remote_launch(settings, job, None, b"")
    there = launch.log.replace("%%", "\0")
    if "%" in there:  # the name of the node is in its name
        return None
    there = target.log_there(launch, there.replace("\0", "%"))
    return target.logs, Log(there, log_path(settings, job)), target.connection.is_down
