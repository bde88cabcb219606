"""Kill the orphans of a job whose shim was killed.

Without the shim the job's processes have no parent of ours. They are found by the run's tag in their
environment, by the job's session, and, if the shim came from our own zygote, as children of the zygote, even
if they changed their environment and session.

Session ids are reused: an id is certain only while the session leader lives. A shim keeps its job's first
process unreaped, so the id was the job's until the shim died. A process that started before the death of the
shim and has that session id belongs to the job.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from gflow.targets.local import run_record
from gflow.targets.local.run_record import Identity
from gflow.targets.local.shim.process_tree import Stat, children, is_dead, is_unreaped, send, stat_of

TAG = "GFLOW_RUN"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ticks() -> int:
    """The present time in clock ticks since boot, as in start times of /proc."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def kill_orphans(
    job: Identity | None, tag: str, *, lived_until: int | None, zygote: int | None = None
) -> bool:
    """Kill the remaining processes of a run. True if none was found that we may kill.

    `lived_until`: when its shim died, in ticks; None: not known.
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
    """KILL a process if it lives and belongs to the run; whether it was signalled."""
    if not _is_target(pid, belongs):
        return False
    with suppress(OSError):  # it has ended
        pidfd = os.pidfd_open(pid)
        try:  # the pid may have been reused since the first check: check again with the pidfd open
            return _is_target(pid, belongs) and is_unreaped(pidfd) and send(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
    return False


def _is_target(pid: int, belongs: Callable[[int, Stat], bool]) -> bool:
    stat = stat_of(pid)
    return stat is not None and belongs(pid, stat) and not (stat.state in "ZX" and is_dead(pid))


def _is_orphan(stat: Stat, zygote: int | None) -> bool:
    """Whether this is a child of the zygote and not a shim: shims are in its session, no job can be."""
    return stat.parent == zygote and stat.session != zygote


def _sessions(job: Identity | None, lived_until: int | None) -> Callable[[Stat], bool]:
    """A test for whether a process is certainly in the job's session."""
    living = None if job is None else run_record.identity_of(job.pid)
    if job is None or (living is not None and living != job):
        return lambda stat: False
    if living is not None:  # the leader may be reaped meanwhile: check its identity each time
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
    except OSError:  # it has ended, or we may not read it
        return False
