"""The end of a run as a shim reports it. The shim imports this module, and only the standard library."""

from __future__ import annotations

import errno
from typing import NamedTuple

# Code of the problem of a run that did not begin for a reason outside the job.
DEFERRED = "Deferred"
# Code of the problem of a job that exceeded its memory limit.
OUT_OF_MEMORY = "OutOfMemory"
# Errors of the daemon or the machine: the same start may succeed later.
SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)


class ShimEnd(NamedTuple):
    """The end of a run. `problem` is the text of a reason; empty: the job exited by itself."""

    code: int | None
    signal: int | None
    problem: str
    cpu_ms: int = 0
    peak_kib: int = 0


def deferred(why: str) -> ShimEnd:
    """The end of a run that never began and should be retried."""
    return ShimEnd(None, None, f"{DEFERRED}: {why}")
