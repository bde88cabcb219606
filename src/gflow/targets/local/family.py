"""The processes below a shim: found, frozen, ended. However they detached themselves.

A process that loses its parent becomes a child of the shim (its subreaper), so walking down
from the shim finds everything the job ever started. Killed on sight, a parent cannot replace
its children, and they come to the shim; so the walk is repeated until it finds nobody new.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress


def descendants(root: int) -> Iterator[int]:
    """Every process below `root`, parents before children, each as soon as it is found."""
    line = [root]
    while line:
        below = children(line.pop())
        yield from below
        line += below


def kill_descendants(root: int, reap: Callable[[], object]) -> None:
    """KILL everything below `root` (us), until a walk finds nobody new.

    Among processes that fork and leave all the time, one is gone before a long walk comes to it. So
    they are killed on sight, and our own children first: the others become that when their parents go.
    """
    _until_nobody_is_new(lambda: children(root), reap)
    _until_nobody_is_new(lambda: descendants(root), reap)


def _until_nobody_is_new(look: Callable[[], Iterable[int]], reap: Callable[[], object]) -> None:
    ours = os.getpgrp()
    seen: set[int] = set()
    while True:
        before, seen = seen, set()
        for pid in look():
            _kill(pid, ours)
            seen.add(pid)
        reap()
        if seen <= before:  # nobody, or some who cannot die just now
            return


def _kill(pid: int, ours: int) -> None:
    """KILL a process with its group: that takes along what its members fork just now."""
    with suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        if group == ours:  # it has just been forked by us
            os.kill(pid, signal.SIGKILL)
        else:
            os.killpg(group, signal.SIGKILL)


def send_group(group: int, number: int) -> None:
    """A signal, if there is still somebody to get it. What became another user's we cannot end."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


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
