"""How a run ended. Apart from the port: what runs beside a job needs it, and the standard library alone."""

from __future__ import annotations

import errno
from typing import NamedTuple

# What begins the problem of a run that never began, for want of something that is not the job's.
DEFERRED = "Deferred"
# Errors of the daemon's own, or the machine's: the same start may work in a moment.
SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT}
)


class End(NamedTuple):
    """How the job ended. `problem` is set when it could not even start."""

    code: int | None
    signal: int | None
    problem: str
    cpu_ms: int = 0
    peak_kib: int = 0


def deferred(why: str) -> End:
    """The end of a run that never began and is to be tried again."""
    return End(None, None, f"{DEFERRED}: {why}")
