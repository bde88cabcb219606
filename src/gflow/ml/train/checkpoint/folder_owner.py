"""The owner of a checkpoint directory: which run writes to it, and whether that run is alive.

A process is identified by boot, PID namespace, PID and start time, so that a PID that was used again does not
count. The processes of other machines cannot be seen from here. Nothing here needs PyTorch.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import NamedTuple


class Owner(NamedTuple):
    """One process of one attempt of a job. Outside of gflow every run counts as a separate attempt."""

    job: str
    attempt: int
    token: str
    # Identifies the process; empty: it has closed the directory.
    process: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Owner:
        # Job ids are unique per daemon only; the directory of the run record identifies the daemon.
        job = environ.get("GFLOW_JOB_ID", "")
        folder = os.path.dirname(environ.get("GFLOW_RUN", ""))
        attempt = environ.get("GFLOW_ATTEMPT", "0")
        if not job and environ.get("SLURM_JOB_ID"):
            job, folder = environ["SLURM_JOB_ID"], environ.get("SLURM_CLUSTER_NAME", "slurm")
            attempt = str(int(environ.get("SLURM_RESTART_COUNT", "0")) + 1)
        name = f"{folder}:{job}" if job else ""
        number = int(attempt) if attempt.isdecimal() else 0
        return cls(name, number, secrets.token_hex(8), process_name(os.getpid()))

    @property
    def pid(self) -> int:
        return int(self.process.split(":")[2]) if self.process else 0

    def is_running_elsewhere(self) -> bool:
        """Whether another process of this machine owns the directory and is alive."""
        if not self.process or self.pid == os.getpid():
            return False
        return self.process == process_name(self.pid)


def process_name(pid: int) -> str:
    """Return a name for a process that no other process gets; empty: there is none with this PID."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The command's name is in parentheses and may contain any character.
            state, *fields = file.read().rpartition(")")[2].split()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return "" if state in "ZX" else f"{boot}:{namespace}:{pid}:{fields[18]}"
