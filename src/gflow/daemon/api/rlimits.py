"""The resource limits of the submitting process, read from the kernel while it waits for its answer."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from gflow.errors import Refused
from gflow.privileged.port import Privileged

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
# More than /proc/PID/limits has, which is read at once.
MOST_BYTES = 16 << 10
# Socket option: a pidfd of the process that connected, immune to pid reuse (Linux 6.5).
SO_PEERPIDFD = 77


def limits_of(state: Mapping[str, Any], privileged: Privileged, *, is_required: bool) -> tuple[Limit, ...]:
    """The caller's limits that differ from the daemon's; jobs inherit the others from the daemon.

    `is_required`: raise Refused if the limits are unknown, because the jobs would run with root's. Root is
    exempt.
    """
    limits = known_limits(state, privileged)
    if limits is None:
        if is_required and state["uid"]:
            raise _unknown_limits(state)
        return ()
    return tuple(sorted(frozenset(limits) - own_limits()))


def known_limits(state: Mapping[str, Any], privileged: Privileged) -> Iterable[Limit] | None:
    """All limits of the connected process, or of the process that created the token; None if unknown."""
    if not state["pid"]:
        limits: Iterable[Limit] | None = state.get("limits")
        return limits
    return read_peer(state["socket"], state["pid"], state["uid"], privileged)


def _unknown_limits(state: Mapping[str, Any]) -> Refused:
    if "limits" in state:
        return Refused(
            "this token has no resource limits for jobs: an earlier gflow made it",
            hint="make another one on the machine: gctl token create",
        )
    return Refused(
        "the resource limits of the submitting process cannot be read",
        hint="it has exited, changed its user, or runs in another pid namespace",
    )


def read_peer(sock: socket.socket, pid: int, uid: int, privileged: Privileged) -> frozenset[Limit] | None:
    """Limits of the connected process; None if it has exited or now runs as another user.

    The pidfd shows that the pid was not reused before the limits were read.
    """
    try:
        pidfd = _open_pidfd(sock, pid)
    except OSError:
        return None
    try:
        text = _read_limits(pid, uid, privileged)
        return None if text is None or _has_ended(pidfd) else parse(text)
    finally:
        os.close(pidfd)


def _read_limits(pid: int, uid: int, privileged: Privileged) -> str | None:
    """The limits of a process as text; None: it has ended, or runs as another user."""
    try:
        text = _content(f"/proc/{pid}/limits")
        return text if _runs_as(pid, uid) else None
    except OSError:
        found = privileged.hidden_process(pid)
        return found.limits if found is not None and found.uid == uid else None


def _content(path: str) -> str:
    """The text of a short file in /proc. A file object takes seven times as long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, MOST_BYTES).decode()
    finally:
        os.close(fd)


def _open_pidfd(sock: socket.socket, pid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    # Older kernel: the pid may have been reused, but only by the same user (see `_runs_as`).
    return os.pidfd_open(pid)


def _runs_as(pid: int, uid: int) -> bool:
    """Whether the effective uid of the process is still `uid`: it may have executed a set-uid program."""
    if os.stat(f"/proc/{pid}").st_uid == uid:
        return True
    with open(f"/proc/{pid}/status") as file:  # /proc/PID belongs to root if the process is not dumpable
        _, effective, *_ = next(line.split()[1:] for line in file if line.startswith("Uid:"))
    return effective == str(uid)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


@lru_cache(maxsize=64)
def parse(text: str) -> frozenset[Limit]:
    """Parse the text of /proc/PID/limits; -1 means unlimited."""
    found = set()
    for line in text.splitlines()[1:]:
        name = line[:26].strip()
        if name in NAMES:
            soft, hard = line[26:].split()[:2]
            found.add((NAMES[name], _number(soft), _number(hard)))
    return frozenset(found)


@cache
def own_limits() -> frozenset[Limit]:
    """The limits that jobs inherit: the daemon's as of the zygote's fork. Cached: it raises its own later."""
    with open("/proc/self/limits") as file:
        return parse(file.read())


def _number(text: str) -> int:
    return -1 if text == "unlimited" else int(text)
