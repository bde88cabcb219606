"""Find and end what a job left behind when its shim was killed.

With the shim gone nobody is the parent of the job's processes any more. They are known by the run's
tag in their environment; by the job's session; and those of a shim of our own zygote by having become
the zygote's children, whatever traces they wiped.

A session is known by a number, and numbers are used again: only while its leader lives does the number
surely say whose it is. A shim keeps its job's first process from being reaped, so when a shim has died
before our eyes, the number was the job's until then, and a process that is older than that moment and has
the number as its session belongs to the job.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from gflow.targets.local import run_record
from gflow.targets.local.run_record import Identity
from gflow.targets.local.shim.process_tree import Stat, children, is_dead, keeps_its_number, send, stat_of

TAG = "GFLOW_RUN"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ticks() -> int:
    """Now, as /proc counts the starts of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def kill_leftovers(
    job: Identity | None, tag: str, *, lived_until: int | None, zygote: int | None = None
) -> bool:
    """Kill what is left of a run. True when nothing was found any more that we may kill.

    `lived_until`: when its shim died, in ticks; None: that is not known.
    """
    of_zygote = [] if zygote is None else children(zygote)
    of_session, of_tag = _sessions(job, lived_until), f"{TAG}={tag}".encode()
    killed = 0
    killed += sum(_kill(pid, lambda pid, stat: _is_orphan(stat, zygote)) for pid in of_zygote)
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            killed += _kill(int(name), lambda pid, stat: of_session(stat) or _is_tagged(pid, of_tag))
    return not killed


def _kill(pid: int, belongs: Callable[[int, Stat], bool]) -> bool:
    """KILL the process with this number if it lives and belongs to the run; whether we could."""
    if not _is_meant(pid, belongs):
        return False
    with suppress(OSError):  # gone meanwhile
        pidfd = os.pidfd_open(pid)
        try:  # the number may be another process's since we looked: only what is open now counts
            return _is_meant(pid, belongs) and keeps_its_number(pidfd) and send(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
    return False


def _is_meant(pid: int, belongs: Callable[[int, Stat], bool]) -> bool:
    stat = stat_of(pid)
    return stat is not None and belongs(pid, stat) and not (stat.state in "ZX" and is_dead(pid))


def _is_orphan(stat: Stat, zygote: int | None) -> bool:
    """Children of the zygote that are no shims: those are in its session, and no job can get in there."""
    return stat.parent == zygote and stat.session != zygote


def _sessions(job: Identity | None, lived_until: int | None) -> Callable[[Stat], bool]:
    """Whether a process is surely in the job's session."""
    living = None if job is None else run_record.identity_of(job.pid)
    if job is None or (living is not None and living != job):
        return lambda stat: False
    if living is not None:  # it may be reaped while we look; then the number is looked at again next time
        return lambda stat: stat.session == job.pid and run_record.identity_of(job.pid) == job
    if lived_until is None or (job.boot, job.namespace) != (
        run_record.boot_id(),
        run_record.namespace_of_pids(),
    ):
        return lambda stat: False
    return lambda stat: stat.session == job.pid and stat.started < lived_until


def _is_tagged(pid: int, tag: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return tag in file.read().split(b"\0")
    except OSError:  # it ended while we looked, or it is not ours to read
        return False
