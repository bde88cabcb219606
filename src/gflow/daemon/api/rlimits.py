"""The resource limits of the submitting process, read from the kernel while it waits for its answer."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from gflow.errors import Refused

NAMES = {
    "Max cpu time": resource.RLIMIT_CPU,
    "Max file size": resource.RLIMIT_FSIZE,
    "Max data size": resource.RLIMIT_DATA,
    "Max stack size": resource.RLIMIT_STACK,
    "Max core file size": resource.RLIMIT_CORE,
    "Max processes": resource.RLIMIT_NPROC,
    "Max open files": resource.RLIMIT_NOFILE,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
    "Max address space": resource.RLIMIT_AS,
}
Limit = tuple[int, int, int]
# A pidfd of the process that connected (Linux 6.5), whatever has its number now.
SO_PEERPIDFD = 77


def limits_of(state: Mapping[str, Any], *, strictly: bool) -> tuple[Limit, ...]:
    """Limits for jobs of this caller that differ from ours: a job inherits the others anyway.

    `strictly`: without known limits the jobs are refused, or they would run with root's. Root has root's.
    """
    theirs = known_limits(state)
    if theirs is None:
        if strictly and state["uid"]:
            raise _unknown(state)
        return ()
    return tuple(sorted(frozenset(theirs) - ours()))


def known_limits(state: Mapping[str, Any]) -> Iterable[Limit] | None:
    """All limits of the process that connected, or of the one that made the token; None: unknown."""
    if not state["pid"]:
        limits: Iterable[Limit] | None = state.get("limits")
        return limits
    return read_peer(state["socket"], state["pid"], state["uid"])


def _unknown(state: Mapping[str, Any]) -> Refused:
    if "limits" in state:
        return Refused(
            "this token has no resource limits for jobs: an earlier gflow made it",
            hint="make another one on the machine: gctl token create",
        )
    return Refused(
        "the resource limits of the submitting process cannot be read",
        hint="it has exited, changed its user, or runs in another pid namespace",
    )


def read_peer(sock: socket.socket, pid: int, uid: int) -> frozenset[Limit] | None:
    """Limits of the process that connected; None: it is gone, or it runs as another user by now.

    A pidfd tells whether the number was still its own when the limits had been read.
    """
    try:
        pidfd = _open_pidfd(sock, pid)
    except OSError:
        return None
    try:
        with open(f"/proc/{pid}/limits") as file:
            theirs = parse(file.read())
        return theirs if _runs_as(pid, uid) and not _has_ended(pidfd) else None
    except OSError:
        return None
    finally:
        os.close(pidfd)


def _open_pidfd(sock: socket.socket, pid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    # An older kernel: the number may be another process's by now, but not another user's (see `_runs_as`).
    return os.pidfd_open(pid)


def _runs_as(pid: int, uid: int) -> bool:
    """Whether the process still has this user's rights: a set-uid program that it became has others."""
    if os.stat(f"/proc/{pid}").st_uid == uid:
        return True
    with open(f"/proc/{pid}/status") as file:  # the folder is root's if the process may not be looked into
        _, effective, *_ = next(line.split()[1:] for line in file if line.startswith("Uid:"))
    return effective == str(uid)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def parse(text: str) -> frozenset[Limit]:
    """The limits in the text of /proc/PID/limits; -1 is unlimited."""
    found = set()
    for line in text.splitlines()[1:]:
        name = line[:26].strip()
        if name in NAMES:
            soft, hard = line[26:].split()[:2]
            found.add((NAMES[name], _number(soft), _number(hard)))
    return frozenset(found)


@cache
def ours() -> frozenset[Limit]:
    """What jobs inherit: our limits as they were when the zygote was forked."""
    with open("/proc/self/limits") as file:
        return parse(file.read())


def _number(text: str) -> int:
    return -1 if text == "unlimited" else int(text)
