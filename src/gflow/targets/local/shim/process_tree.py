"""The processes below a shim: found, signalled and ended, however they detached themselves.

A process that loses its parent becomes a child of the shim (its subreaper), so walking down
from the shim finds everything the job ever started. Killed on sight, a parent cannot replace
its children, and they come to the shim; so the walk is repeated until it finds nobody new.

A pid is only a number: once its process is reaped, the next process may have it, and it may be another
user's. So a signal goes either through a pidfd, opened first and only then verified to be a process below
us, or to the process group of a child of ours that has not been reaped, whose number is still its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

# pidfd_send_signal() to the process group that the process leads; Linux 6.9.
PROCESS_GROUP = 1 << 2
PAGE = os.sysconf("SC_PAGESIZE")
# How far down a walk goes: one descriptor is open for each level, and what is deeper comes up.
DEEP = 200


class Stat(NamedTuple):
    """What /proc/PID/stat says of a process, as far as it is needed."""

    state: str
    parent: int
    group: int
    session: int
    # Clock ticks between boot and its start.
    started: int
    # As wait() gives it; 0 if we may not know.
    status: int


def stat_of(pid: int | str, thread: str = "") -> Stat | None:
    """The process with this number, or one of its threads; None if there is none."""
    try:
        with open(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:  # it is gone, or hidden from us
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    numbers = (fields[1], fields[2], fields[3], fields[19], fields[49])
    return Stat(fields[0].decode(), *map(int, numbers))


def descendants(root: int) -> Iterator[int]:
    """Every process below `root`, parents before children, each as soon as it is found."""
    line = [root]
    while line:
        below = children(line.pop())
        yield from below
        line += below


# ---------------------------------------------------------------- ending them


def kill_descendants(collect: Callable[[int], bool]) -> None:
    """KILL everything below us, until a walk finds nobody new. `collect` reaps a child of ours if it is dead.

    Among processes that fork and leave all the time, one is gone before a long walk comes to it. So
    they are killed on sight, and our own children first: the others become that when their parents go.
    """
    for depth in (0, DEEP):
        seen: set[int] = set()
        while True:
            before, seen = seen, set()
            _kill_children(collect, depth, seen)
            if seen <= before:  # nobody, or some who cannot die just now
                break


def _kill_children(collect: Callable[[int], bool], depth: int, seen: set[int]) -> None:
    """KILL our own children with the groups that they lead: nobody but us reaps them, so a number is safe."""
    us = os.getpid()
    for pid in children(us):
        if collect(pid):
            continue
        seen.add(pid)
        send_group(pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        if depth:
            _kill_below(pid, None, depth, us, seen)


def _kill_below(parent: int, held: int | None, depth: int, us: int, seen: set[int]) -> None:
    """KILL the children of a process (`held`: its pidfd; None: it is our child), and theirs to this depth."""
    for pid in children(parent):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # it is gone
            continue
        try:
            if _is_child(pid, pidfd, parent, held, us):
                seen.add(pid)
                send(pidfd, signal.SIGKILL, PROCESS_GROUP)
                send(pidfd, signal.SIGKILL)
                if depth:
                    _kill_below(pid, pidfd, depth - 1, us, seen)
        finally:
            os.close(pidfd)


def _is_child(pid: int, pidfd: int, parent: int, held: int | None, us: int) -> bool:
    """Whether this pidfd is of a living child of `parent`, or of one that has come to us meanwhile.

    /proc is asked by number. What it said was of these two processes if neither has been reaped by now.
    """
    stat = stat_of(pid)
    if stat is None or stat.parent not in (parent, us) or (stat.state in "ZX" and is_dead(pid)):
        return False
    return keeps_its_number(pidfd) and (held is None or keeps_its_number(held))


def keeps_its_number(pidfd: int) -> bool:
    """Whether the process lives or is a zombie: until it is reaped nobody else has its pid."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def send(pidfd: int, number: int, flags: int = 0) -> bool:
    """Signal a process; whether there was one that could be told, and a kernel that knows these flags."""
    try:
        signal.pidfd_send_signal(pidfd, number, None, flags)
    except OSError:
        return False
    return True


def send_group(leader: int, number: int) -> None:
    """Signal the group of `leader`, a child of ours that has not been reaped: the number is its own.

    What became another user's we cannot end.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def send_members(
    number: int, belongs: Callable[[Stat], bool], is_certain: Callable[[], bool] = lambda: True
) -> None:
    """Signal every process of which `belongs` is true. `is_certain`: whether the numbers it goes by still
    mean what they did; asked after each look at a process.
    """
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        stat = stat_of(name)
        if stat is None or not belongs(stat):
            continue
        with suppress(OSError):
            pidfd = os.pidfd_open(int(name))
            try:
                stat = stat_of(name)
                if stat is not None and belongs(stat) and keeps_its_number(pidfd) and is_certain():
                    send(pidfd, number)
            finally:
                os.close(pidfd)


def send_group_of(leader: int, number: int) -> None:
    """Signal the process group that the process of this pidfd leads. Nothing, if it has been reaped."""
    if send(leader, number, PROCESS_GROUP) or not keeps_its_number(leader):
        return
    group = _pid_of(leader)
    send_members(number, lambda stat: stat.group == group, lambda: keeps_its_number(leader))


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))


# ---------------------------------------------------------------- those that do not die


class Held(NamedTuple):
    """A zombie that only another process may reap: it traces it."""

    pid: int
    tracer: int


def left_below() -> tuple[list[int], list[Held]]:
    """Our children that live, and those that are dead and only somebody else can reap.

    A zombie has no children: where none of ours lives, nothing below us does.
    """
    living: list[int] = []
    held: list[Held] = []
    for pid in children(os.getpid()):
        if not is_dead(pid):
            living.append(pid)
        elif tracer := _tracer_of(pid):
            held.append(Held(pid, tracer))
    return living, held


def is_dead(pid: int) -> bool:
    """Whether all threads of a process have ended. Its first one alone may be a zombie while others live."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    stats = [stat_of(pid, thread) for thread in threads]
    return all(stat is None or stat.state in "ZX" for stat in stats)


def _tracer_of(pid: int) -> int:
    """Who traces a process, or a thread of it; 0: nobody."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if tracer := int(status_of(f"{pid}/task/{thread}").get("TracerPid", "0")):
                return tracer
    return 0


def tell_of(pid: int) -> str:
    """A process for people: `4711 (python3, user 1000)`."""
    return f"{pid} ({_name_of(pid)}, user {status_of(pid).get('Uid', '?').split()[0]})"


def _name_of(pid: int) -> str:
    """The name of a process; it chose it itself, so it may hold anything."""
    name = status_of(pid).get("Name", "?")
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def tell_stuck(living: list[int]) -> str:
    """Which process does not die, in what it waits or who holds it: `pid 4711 (cp) in D state (nfs_wait)`."""
    stats = [(pid, stat) for pid in living if (stat := stat_of(pid)) is not None]
    if not stats:
        return ""
    pid, stat = min(stats, key=lambda one: one[1].state != "D")
    waits = ""
    with suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        waits = file.read().strip("0\n")
    tracer = _tracer_of(pid) if stat.state == "t" else 0
    traced = f", traced by {tell_of(tracer)}" if tracer else ""
    more = f" and {len(stats) - 1} more" if len(stats) > 1 else ""
    return (
        f"pid {pid} ({_name_of(pid)}) in {stat.state} state"
        + (f" ({waits})" if waits else "")
        + traced
        + more
    )


def status_of(pid: int | str) -> dict[str, str]:
    """What /proc/PID/status says of a process, or of `PID/task/THREAD`; nothing if it is gone or hidden."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {}


# ---------------------------------------------------------------- what they use


def mapped_kib(pids: Iterable[int]) -> int:
    """Memory of these processes, shared pages counted for each of them: at least what `resident_kib` finds.

    The kernel has this number ready; for the other one it walks all pages.
    """
    total = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            total += int(file.read().split()[1])
    return total * (PAGE >> 10)


def resident_kib(pids: Iterable[int]) -> int:
    """Memory of these processes, shared pages counted once among them (proportional set size)."""
    total = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1])
                    break
    return total


def children(pid: int) -> list[int]:
    """The children of all threads of a process; none if it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found
