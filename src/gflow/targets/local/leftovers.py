"""Find and end what a job left behind when its shim was killed.

With the shim gone nobody is the parent of the job's processes any more. They are known by the run's
tag in their environment; by the job's session; and those of a shim of our own zygote by having become
the zygote's children, whatever traces they wiped.

A session is known by a number, and numbers are used again: only while its leader lives, or its shim
has died before our eyes, does the number say whose it is.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from gflow.targets.local import record
from gflow.targets.local.family import children
from gflow.targets.local.record import Identity

TAG = "GFLOW_RUN"


def kill_leftovers(job: Identity | None, tag: str, *, just_now: bool, zygote: int | None = None) -> bool:
    """Kill what is left of a run. True when nothing was found any more that we may kill.

    `just_now`: its shim lived a moment ago.
    """
    killed = 0
    for pid in [*_orphans(zygote), *_find(_session(job, just_now), f"{TAG}={tag}".encode())]:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return not killed


def _orphans(zygote: int | None) -> list[int]:
    """Children of the zygote that are no shims: those are in its session, and no job can get in there."""
    found = []
    for pid in children(zygote) if zygote is not None else ():
        with suppress(ProcessLookupError):
            if os.getsid(pid) != zygote:
                found.append(pid)
    return found


def _session(job: Identity | None, just_now: bool) -> int | None:
    """The number of the job's session, if it surely still means that."""
    if job is None:
        return None
    living = record.identity_of(job.pid)
    if living is None:
        ours = job.boot == record.boot_id() and job.namespace == record.namespace_of_pids()
        return job.pid if ours and just_now else None
    return job.pid if living == job else None


def _find(session: int | None, tag: bytes) -> list[int]:
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
