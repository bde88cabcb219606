"""The end of a run. Separate from the port because the shim imports it, and only the standard library."""

from __future__ import annotations

import errno
from typing import NamedTuple

# Prefix of the problem of a run that did not begin for a reason outside the job.
DEFERRED = "Deferred"
# Errors of the daemon or the machine: the same start may succeed later.
SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)


class End(NamedTuple):
    """The end of a job. `problem` is set if it could not start, or gflow or Slurm ended it."""

    code: int | None
    signal: int | None
    problem: str
    cpu_ms: int = 0
    peak_kib: int = 0


def deferred(why: str) -> End:
    """The end of a run that never began and should be retried."""
    return End(None, None, f"{DEFERRED}: {why}")
