"""The resource limits of whoever submits, read from the kernel while the caller waits for its answer."""

from __future__ import annotations

import resource
from functools import cache

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


def limits_of(pid: int, *, strictly: bool = False) -> tuple[Limit, ...]:
    """Limits of a process that differ from this one's: a job inherits the others anyway.

    `strictly`: whoever is gone before that is refused, or nobody's limits would hold. 0 is nobody here.
    """
    try:
        with open(f"/proc/{pid}/limits") as file:
            theirs = parse(file.read())
    except OSError as error:  # it is gone, or not ours to read: the job gets our limits
        if pid and strictly:
            raise Refused("whoever asked is gone, and with them the limits of the job") from error
        return ()
    return tuple(sorted(theirs - ours()))


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
