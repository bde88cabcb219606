"""The process tree below a shim: find, signal and kill its processes, also detached ones.

A process that loses its parent becomes a child of the shim (its subreaper), so a walk down from the shim
finds everything that the job started. A killed parent cannot replace its children, which become children of
the shim; so the walk is repeated until it finds no new process.

Once a process is reaped, its pid may be reused, also by a process of another user. So a signal goes either
through a pidfd, which is opened first and then verified to be a process below the shim, or to the process
group of a child that has not been reaped, whose pid cannot be reused yet.
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
# Names of shells: a job's first process that is one, and has children, runs a script or a command line.
# `native/supervise.c` has the same list, and the same signals.
SHELLS = frozenset(
    ("bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "ksh93", "fish", "tcsh", "csh", "busybox")
)
# Signals that no shell can trap, or that continue a stopped job: its shell gets them, too.
TO_ALL = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT})
# Depth of a walk. One descriptor is open for each level; deeper processes move up as their parents die.
MAX_DEPTH = 200


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are needed."""

    state: str
    parent: int
    group: int
    session: int
    # Clock ticks between boot and its start.
    started: int
    # Exit status as wait() returns it; 0 if we have no permission to read it.
    status: int


def stat_of(pid: int | str, thread: str = "") -> Stat | None:
    """The stat of a process, or of one of its threads; None if there is none."""
    try:
        with open(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:  # it has ended, or is hidden from us
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    numbers = (fields[1], fields[2], fields[3], fields[19], fields[49])
    return Stat(fields[0].decode(), *map(int, numbers))


def descendants(root: int) -> Iterator[int]:
    """Every process below `root`, parents before children, each as soon as it is found."""
    pending = [root]
    while pending:
        below = children(pending.pop())
        yield from below
        pending += below


# ---------------------------------------------------------------- killing


def kill_descendants(collect: Callable[[int], bool]) -> None:
    """KILL everything below us, until a walk finds no new process. `collect` reaps a child if it is dead.

    Processes that fork and exit all the time are gone before a long walk reaches them. So each is killed as
    soon as it is found, our own children first: the others become our children when their parents die.
    """
    for depth in (0, MAX_DEPTH):
        seen: set[int] = set()
        while True:
            before, seen = seen, set()
            _kill_children(collect, depth, seen)
            if seen <= before:  # none, or only processes that cannot die now
                break


def _kill_children(collect: Callable[[int], bool], depth: int, seen: set[int]) -> None:
    """KILL our own children with the groups that they lead. Only we reap them, so their pids are safe."""
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
    """KILL the descendants of a process to this depth. `held`: its pidfd; None: it is our child."""
    for pid in children(parent):
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # it has ended
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
    """Whether this pidfd is a living child of `parent`, or one that has been reparented to us meanwhile.

    /proc is read by pid. Its answer is about these two processes if neither has been reaped by now.
    """
    stat = stat_of(pid)
    if stat is None or stat.parent not in (parent, us) or (stat.state in "ZX" and is_dead(pid)):
        return False
    return is_unreaped(pidfd) and (held is None or is_unreaped(held))


def is_unreaped(pidfd: int) -> bool:
    """Whether the process lives or is a zombie. Until it is reaped, its pid is not reused."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def send(pidfd: int, number: int, flags: int = 0) -> bool:
    """Signal a process. False: it has ended, we may not signal it, or the kernel lacks these flags."""
    try:
        signal.pidfd_send_signal(pidfd, number, None, flags)
    except OSError:
        return False
    return True


def send_group(leader: int, number: int) -> None:
    """Signal the group of `leader`, an unreaped child of ours, so that its pid is not reused.

    A leader that has not made its group yet gets the signal alone. Members that run as another user cannot be
    signalled.
    """
    with suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(leader, number)
        except ProcessLookupError:
            os.kill(leader, number)


def send_members(
    number: int,
    belongs: Callable[[Stat], bool],
    is_certain: Callable[[], bool] = lambda: True,
    but: int = 0,
) -> bool:
    """Signal every process for which `belongs` is true, except the process `but`. False: there is none.

    `is_certain`: whether the pids that `belongs` compares with are still valid; called before each signal.
    """
    is_sent = False
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == but:
            continue
        stat = stat_of(name)
        if stat is None or not belongs(stat):
            continue
        with suppress(OSError):
            pidfd = os.pidfd_open(int(name))
            try:
                stat = stat_of(name)
                if stat is not None and belongs(stat) and is_unreaped(pidfd) and is_certain():
                    is_sent |= send(pidfd, number)
            finally:
                os.close(pidfd)
    return is_sent


def send_job(first: int, number: int) -> None:
    """Signal the job of this first process (a pidfd). A negative number: only this process.

    The signal goes to the job's process group. As in Slurm a batch shell does not get it: the shell would end
    in the middle of its programs' work. A first process without others in its group always gets it.
    """
    if number < 0:
        send(first, -number)
    elif number in TO_ALL or not _send_programs(first, number):
        send_group_of(first, number)


def _send_programs(shell: int, number: int) -> bool:
    """Signal the group of this process without itself. False: it is no shell, or has no others."""
    group = _pid_of(shell)
    if not _is_shell(group):
        return False

    def belongs(stat: Stat) -> bool:
        return stat.group == group and stat.state not in "ZX"

    return send_members(number, belongs, lambda: is_unreaped(shell), but=group)


def _is_shell(pid: int) -> bool:
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).split(" ")[0] in SHELLS
    return False


def send_group_of(leader: int, number: int) -> None:
    """Signal the process group that the process of this pidfd leads. No-op if it has been reaped."""
    if send(leader, number, PROCESS_GROUP) or not is_unreaped(leader):
        return
    group = _pid_of(leader)
    send_members(number, lambda stat: stat.group == group, lambda: is_unreaped(leader))


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))


# ---------------------------------------------------------------- processes that do not die


class TracedZombie(NamedTuple):
    """A zombie that only its tracer can reap."""

    pid: int
    tracer: int


def remaining_children() -> tuple[list[int], list[TracedZombie]]:
    """Our living children, and our dead ones that only their tracers can reap.

    A zombie has no children: if none of our children lives, nothing below us does.
    """
    living: list[int] = []
    held: list[TracedZombie] = []
    for pid in children(os.getpid()):
        if not is_dead(pid):
            living.append(pid)
        elif tracer := _tracer_of(pid):
            held.append(TracedZombie(pid, tracer))
    return living, held


def is_dead(pid: int) -> bool:
    """Whether all threads of a process have ended. The first thread may be a zombie while others live."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    stats = [stat_of(pid, thread) for thread in threads]
    return all(stat is None or stat.state in "ZX" for stat in stats)


def _tracer_of(pid: int) -> int:
    """The pid of the tracer of a process or of one of its threads; 0: not traced."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if tracer := int(status_of(f"{pid}/task/{thread}").get("TracerPid", "0")):
                return tracer
    return 0


def describe_process(pid: int) -> str:
    """A process as text: `4711 (python3, user 1000)`."""
    return f"{pid} ({_name_of(pid)}, user {status_of(pid).get('Uid', '?').split()[0]})"


def _name_of(pid: int) -> str:
    """The name of a process, with unprintable characters replaced: the process sets it itself."""
    name = status_of(pid).get("Name", "?")
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def describe_stuck(living: list[int]) -> str:
    """Describe a process that does not die, and what holds it: `pid 4711 (cp) in D state (nfs_wait)`."""
    stats = [(pid, stat) for pid in living if (stat := stat_of(pid)) is not None]
    if not stats:
        return ""
    pid, stat = min(stats, key=lambda one: one[1].state != "D")
    waits = ""
    with suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        waits = file.read().strip("0\n")
    tracer = _tracer_of(pid) if stat.state == "t" else 0
    traced = f", traced by {describe_process(tracer)}" if tracer else ""
    more = f" and {len(stats) - 1} more" if len(stats) > 1 else ""
    return (
        f"pid {pid} ({_name_of(pid)}) in {stat.state} state"
        + (f" ({waits})" if waits else "")
        + traced
        + more
    )


def status_of(pid: int | str) -> dict[str, str]:
    """The fields of /proc/PID/status, or of `PID/task/THREAD`; empty if it has ended or is hidden."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {}


# ---------------------------------------------------------------- usage


def mapped_kib(pids: Iterable[int]) -> int:
    """Resident memory of these processes, shared pages counted for each: never below `resident_kib`.

    Cheap: the kernel keeps this number. For `resident_kib` it walks all pages.
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
    """The children of all threads of a process; empty if it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found
