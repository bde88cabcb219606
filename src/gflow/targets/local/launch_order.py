"""Build the order for a shim from a launch."""

from __future__ import annotations

import os
from typing import NamedTuple

from gflow.targets.local.orphans import TAG
from gflow.targets.local.protocol import Order
from gflow.targets.port import Launch


class Places(NamedTuple):
    """The files of one run."""

    record: str
    stop_file: str
    # Where the script is copied to if the original changed.
    snapshot: str
    terminal: str = ""
    # The folder for its own /tmp.
    private_tmp: str = ""


# Folders that a job may have for itself.
SHARED_FOLDERS = ("/tmp", "/dev/shm")


def order_of(launch: Launch, places: Places, tag: str) -> Order:
    """The order for a launch. `tag` identifies this daemon in leases of shared GPUs."""
    job, spec = launch.job, launch.job.spec
    variables = f"{TAG}={places.record}\0GFLOW_STOP_FILE={places.stop_file}\0"
    return Order(
        key=job.key,
        attempt=job.attempt,
        record=places.record,
        command=spec.command,
        script=launch.script,
        script_path=spec.script_path,
        environ=launch.environ,
        extra=os.fsencode(variables) + launch.extra,
        cwd=spec.cwd,
        umask=spec.umask,
        log=launch.log,
        error_log=launch.error_log,
        log_cap=launch.log_cap,
        grace_s=spec.grace_s,
        stop_file=places.stop_file,
        memory_mib=spec.memory_mib,
        cpus=spec.cpus or 0,
        limits=spec.limits,
        leases=launch.leases,
        sharing=tag if spec.shared else "",
        uid=launch.uid,
        snapshot=places.snapshot,
        terminal=places.terminal if spec.pty else "",
        max_processes=launch.max_processes,
        unkillable_s=launch.unkillable_s,
        user=job.user if launch.uid is not None else "",
        devices=launch.devices,
        default_memory=launch.rules.memory_mib,
        memory_advice=launch.rules.is_memory_advice,
        cpu_quota=launch.rules.has_cpu_quota,
        oom_score=launch.rules.oom_score,
        wrapper=launch.wrapper,
        private_tmp=places.private_tmp if _wants_private_tmp(launch) else "",
    )


def _wants_private_tmp(launch: Launch) -> bool:
    """Whether the job gets a /tmp of its own: not if its folder, log or script is in the shared one."""
    if not launch.rules.has_private_tmp:
        return False
    paths = (launch.job.spec.cwd, launch.job.spec.script_path, launch.log, launch.error_log)
    return not any(f"{path}/".startswith(f"{folder}/") for path in paths for folder in SHARED_FOLDERS)


def exec_order(
    order: Order, record: str, terminal: str, exec_job: tuple[str, ...], command: tuple[str, ...]
) -> Order:
    """The order for a command executed in a running job: as the job's, without its leases and limits."""
    return order._replace(
        record=record,
        command=command,
        script=None,
        wrapper=(),
        log=os.devnull,
        error_log=os.devnull,
        log_cap=0,
        grace_s=0,
        stop_file="",
        memory_mib=0,
        default_memory=0,
        cpus=0,
        leases=(),
        sharing="",
        snapshot="",
        terminal=terminal,
        exec_job=exec_job,
    )
