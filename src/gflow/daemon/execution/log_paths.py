"""Paths of the output files of jobs."""

from __future__ import annotations

import os
import re
import socket

from gflow.core.model import LOCAL, Job
from gflow.daemon.auth.users import home_of
from gflow.daemon.settings import Settings
from gflow.targets.slurm.ssh.remote_folder import OWN

# Placeholders for values that are known only where the job runs.
TASK, HOST = "\0task\0", "\0host\0"
# The most digits to which `%03a` pads a number, as in Slurm.
WIDEST = 10


def log_path(settings: Settings, job: Job) -> str:
    """The path of the job's output; of a job on a cluster elsewhere, that of the copy here."""
    if job.spec.output and not _is_elsewhere(settings, job):
        return expand(job.spec.output, job)
    if not settings.is_system:
        return f"{_log_folder(settings, job)}/{job.label}.log"
    # A folder of its own: a private daemon of the user also numbers its jobs from 1.
    return f"{home_of(job.uid)}/.local/share/gflow/logs/system/{job.label}.log"


def _log_folder(settings: Settings, job: Job) -> str:
    """The folder of logs. The nodes of a cluster may see only the folder that its settings name."""
    cluster = None if job.target == LOCAL else settings.clusters.get(job.target)
    is_shared = cluster is not None and cluster.folder and not cluster.host
    return f"{cluster.folder}/gflow/logs" if cluster and is_shared else str(settings.logs)


def _is_elsewhere(settings: Settings, job: Job) -> bool:
    """Whether the job runs on a cluster that is reached by SSH."""
    cluster = None if job.target == LOCAL else settings.clusters.get(job.target)
    return cluster is not None and bool(cluster.host)


def error_path(settings: Settings, job: Job) -> str:
    return expand(job.spec.error, job) if job.spec.error else log_path(settings, job)


def slurm_path(settings: Settings, job: Job, pattern: str) -> str:
    """The path with Slurm's patterns: Slurm fills in the task and the host."""
    if pattern:
        path = expand(pattern, job, HOST)
    else:
        folder = f"{OWN}logs" if _is_elsewhere(settings, job) else _log_folder(settings, job)
        path = f"{folder}/{job.label}{'_' + TASK if job.is_array else ''}.log"
    return path.replace("%", "%%").replace(TASK, "%a").replace(HOST, "%N")


def expand(pattern: str, job: Job, host: str = "") -> str:
    """Fill the job's values into a pattern; relative to the job's working directory."""
    task = TASK if job.is_array else "" if job.task is None else str(job.task)
    values = {
        "%j": f"{job.label}_{TASK}" if job.is_array else job.label,
        "%A": str(job.number),
        "%a": task,
        "%x": job.file_name.replace("/", "_"),
        "%u": job.user,
        "%h": host or socket.gethostname(),
        "%%": "%",
    }

    def replace(found: re.Match[str]) -> str:
        value = values["%" + found[2]]
        width = min(int(found[1] or 0), WIDEST)
        return value.zfill(width) if found[2] in "jAa" and value.isdecimal() else value

    text = re.sub("%([0-9]{0,3})([jAaxuh%])", replace, pattern)
    return os.path.join(job.spec.cwd, text)
