"""Find and end what a job left behind when its shim was killed.

With the shim gone nobody is the parent of the job's processes any more. They are known by
the process group and session of the job, and by the run's tag in their environment.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from gflow.targets.local import record
from gflow.targets.local.record import Identity

TAG = "GFLOW_RUN"


def kill_leftovers(job: Identity | None, tag: str) -> bool:
    """Kill what is left of a run. True when nothing was found any more that we may kill."""
    killed = 0
    for pid in _find(job, f"{TAG}={tag}".encode()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return not killed


def _find(job: Identity | None, tag: bytes) -> list[int]:
    session = job.pid if job and record.identity_of(job.pid) in (None, job) else None
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _belongs(name, session, tag):
            found.append(int(name))
    return found


def _belongs(pid: str, session: int | None, tag: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        fields = stat[stat.rindex(b")") + 2 :].split()
        if fields[0] in (b"Z", b"X"):
            return False
        if session is not None and int(fields[3]) == session:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return tag in file.read().split(b"\0")
    except OSError:  # it ended while we looked, or it is not ours to read
        return False
