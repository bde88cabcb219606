"""Where a job's output goes."""

from __future__ import annotations

import os
import re
import socket

from gflow.core.model import Job
from gflow.daemon.auth.users import home_of
from gflow.daemon.settings import Settings

# Stand for what is known only where the job runs.
TASK, HOST = "\0task\0", "\0host\0"


def log_path(settings: Settings, job: Job) -> str:
    """Where the job's output goes."""
    if job.spec.output:
        return expand(job.spec.output, job)
    if not settings.is_system:
        return f"{settings.logs}/{job.label}.log"
    # Not among the logs of a daemon of their own: that one counts its jobs from 1, too.
    return f"{home_of(job.uid)}/.local/share/gflow/logs/system/{job.label}.log"


def error_path(settings: Settings, job: Job) -> str:
    return expand(job.spec.error, job) if job.spec.error else log_path(settings, job)


def slurm_path(settings: Settings, job: Job, pattern: str) -> str:
    """The same as Slurm's patterns have it: tasks and hosts are named by itself."""
    if pattern:
        path = expand(pattern, job, HOST)
    else:
        path = f"{settings.logs}/{job.label}{'_' + TASK if job.is_array else ''}.log"
    return path.replace("%", "%%").replace(TASK, "%a").replace(HOST, "%N")


def expand(pattern: str, job: Job, host: str = "") -> str:
    """A log file's pattern with the job's values, relative to the job's folder."""
    task = TASK if job.is_array else "" if job.task is None else str(job.task)
    values = {
        "%j": f"{job.label}_{TASK}" if job.is_array else job.label,
        "%A": str(job.number),
        "%a": task,
        "%x": job.name.replace("/", "_"),
        "%u": job.user,
        "%h": host or socket.gethostname(),
        "%%": "%",
    }
    text = re.sub("%[jAaxuh%]", lambda found: values[found[0]], pattern)
    return os.path.join(job.spec.cwd, text)
