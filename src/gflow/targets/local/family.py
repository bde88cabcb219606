"""The processes below a shim: found, frozen, ended. However they detached themselves.

A process that loses its parent becomes a child of the shim (its subreaper), so walking down
from the shim finds everything the job ever started. A family that forks faster than it is
walked is stopped first, until a walk finds nobody new; then it is killed.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def descendants(root: int) -> list[int]:
    """Every process below `root`, parents before children."""
    found: list[int] = []
    line = [root]
    while line:
        below = _children(line.pop())
        found += below
        line += below
    return found


def kill_descendants(root: int) -> int:
    """Stop everything below `root` until it stands still, then KILL it; how many there were."""
    stopped: set[int] = set()
    while new := [pid for pid in descendants(root) if pid not in stopped]:
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped.update(new)
    for pid in stopped:
        send(pid, signal.SIGKILL)
    return len(stopped)


def send(pid: int, number: int) -> None:
    """A signal, if there is still somebody to get it. What became another user's we cannot end."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def resident_kib(pids: list[int]) -> int:
    """Memory of these processes, shared pages counted once among them (proportional set size)."""
    total = 0
    for pid in pids:
        with suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1])
                    break
    return total


def _children(pid: int) -> list[int]:
    """The children of all threads of a process; none if it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found
