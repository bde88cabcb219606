"""The heartbeat file of a launch: its ranks touch it to show progress, `gflow launch --stall` reads it.

A training loop that prints nothing is healthy as long as its steps end. Nothing here needs PyTorch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

# Environment variable with the path of the file; it is set by `gflow launch --stall`.
FILE = "GFLOW_HEARTBEAT"
EVERY_S = 0.1


class Heartbeat:
    """The side of a rank. Costs a comparison of times for most steps, and never fails."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get(FILE, "")
        self._due = 0.0

    def beat(self) -> None:
        now = time.monotonic()
        if self._path and now >= self._due:
            self._due = now + EVERY_S
            with suppress(OSError):
                os.utime(self._path)


def age_s(path: str) -> float:
    """Return the seconds since the last beat; infinite without a file."""
    try:
        return max(0.0, time.time() - os.stat(path).st_mtime)
    except OSError:
        return float("inf")
