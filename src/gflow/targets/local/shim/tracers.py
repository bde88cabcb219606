"""Tracers outside a job that keep its killed processes from ending.

A tracer may ask the kernel to stop its tracee at exit (PTRACE_O_TRACEEXIT). KILL has no effect on a process
stopped there: it continues when its tracer resumes it or dies. So such a tracer is killed as well. The signal
is sent with the rights of the job's owner: a shim that is root kills no process that the owner could not have
killed. A tracer of another user gets no signal, and the job's log names it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from gflow.targets.local.shim.privileges import run_as_user
from gflow.targets.local.shim.process_tree import (
    descendants,
    describe_process,
    is_unreaped,
    stat_of,
    status_of,
)

# Maximum number of lines about tracers in one job's log.
MOST_NOTES = 20


class Tracers:
    """The tracers of the job's processes. `uid`: the owner of the job; None: our own uid."""

    def __init__(self, uid: int | None) -> None:
        self._uid = uid
        # Tracers already reported, by pid and start time, as pids are reused.
        self._known: set[tuple[int, int]] = set()
        self.notes: list[str] = []

    def kill(self) -> bool:
        """KILL the tracers that hold a killed process of the job; whether any of them is new."""
        killed = [*descendants(os.getpid())]
        seen = {os.getpid(), *killed}
        is_new = False
        while killed:
            pid = killed.pop()
            for thread in _threads(pid):
                tracer = holder_of(pid, thread)
                leader = _leader_of(tracer)
                stat = stat_of(leader) if leader and leader not in seen else None
                if stat is None:
                    continue
                seen.add(leader)
                known = (leader, stat.started) in self._known
                self._known.add((leader, stat.started))
                if self._kill(pid, thread, tracer, leader, known) and known:
                    killed.append(leader)  # it may have a tracer in turn
                is_new |= not known
        return is_new

    def _kill(self, pid: int, thread: str, tracer: int, leader: int, known: bool) -> bool:
        """KILL this tracer if it belongs to the owner; whether it does.

        What /proc reports is valid only if the process is still unreaped afterwards: then its pid was not
        reused in between.
        """
        with suppress(OSError):
            pidfd = os.pidfd_open(leader)
            try:
                is_holder = holder_of(pid, thread) == tracer and _leader_of(tracer) == leader
                name = describe_process(leader)
                is_owners = _is_owners(leader, os.getuid() if self._uid is None else self._uid)
                if not is_holder or not is_unreaped(pidfd):
                    return False
                if is_owners:
                    run_as_user(self._uid, lambda: signal.pidfd_send_signal(pidfd, signal.SIGKILL))
                if not known and len(self._known) <= MOST_NOTES:
                    verdict = "so it is killed, too" if is_owners else "it is another user's and left alone"
                    self.notes.append(
                        f"process {pid} was killed, and its tracer {name} keeps it from ending; {verdict}"
                    )
                return is_owners
            finally:
                os.close(pidfd)
        return False


def holder_of(pid: int, thread: str) -> int:
    """The thread id of the tracer that keeps a thread stopped; 0: none."""
    status = status_of(f"{pid}/task/{thread}")
    return int(status.get("TracerPid", "0")) if status.get("State", "").startswith("t") else 0


def _threads(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def _leader_of(thread: int) -> int:
    """The process of a thread; 0 if there is none or it is hidden from us."""
    return int(status_of(thread).get("Tgid", "0")) if thread else 0


def _is_owners(pid: int, uid: int) -> bool:
    """Whether a user may signal a process: by its real or saved uid, as in kill(2).

    Root may signal every process. For a job of root all uids of the process must be root's.
    """
    real, effective, saved = map(int, status_of(pid).get("Uid", "-1 -1 -1").split()[:3])
    return uid in (real, saved) if uid else not (real or effective or saved)
