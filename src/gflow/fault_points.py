"""Named points at which a test can end the process, as a power cut or `kill -9` would.

`GFLOW_FAULT=NAME[:N]` kills this process the Nth time it passes the point NAME
(default: the first). Every place where durability depends on an order of steps has
a point, so the crash tests can stop the daemon between any two of them.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "turn.before-commit",
    "commit.inside",
    "turn.after-commit",
    "turn.before-effects",
    "start.before-order",
    "start.after-order",
    "forget.before",
    "forget.after",
    "turn.after-effects",
    "adopt.before",
)
# Those that only work in parts passes: see `daemon.loop.bulk`.
BULK_POINTS = (
    "bulk.opened",
    "bulk.staged",
    "bulk.closed",
    "bulk.arrived",
    "bulk.intended",
    "bulk.done-part",
    "bulk.done",
)


class _Fault:
    """Which point is armed, and how often it is still to be passed."""

    def __init__(self, text: str) -> None:
        name, _, count = text.partition(":")
        self.name = name
        self.left = int(count or 1)


_armed = _Fault(os.environ.get("GFLOW_FAULT", ""))


def point(name: str) -> None:
    """Die here if a test armed this point. One string comparison otherwise."""
    if name == _armed.name:
        _armed.left -= 1
        if _armed.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
