"""Fault points: named places at which a crash test ends the process, as a power failure or `kill -9` would.

`GFLOW_FAULT=NAME[:N]` kills this process the Nth time that it passes the point NAME (default: the first).
Every place where durability depends on the order of steps has a point, so that crash tests can stop the
daemon between any two steps.
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
# Points that only changes in parts pass (`daemon.loop.bulk`).
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
    """The armed point, and the number of passes left until it fires."""

    def __init__(self, text: str) -> None:
        name, _, count = text.partition(":")
        self.name = name
        self.left = int(count or 1)


_armed = _Fault(os.environ.get("GFLOW_FAULT", ""))


def point(name: str) -> None:
    """Kill this process if a test armed this point. Costs one string comparison otherwise."""
    if name == _armed.name:
        _armed.left -= 1
        if _armed.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
