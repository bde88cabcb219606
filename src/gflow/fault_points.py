"""Fault points: named places at which a crash test ends the process, as a power failure or `kill -9` would.

`GFLOW_FAULT=NAME[:N]` kills this process the Nth time that it passes the point NAME (default: the first).
Every place where durability depends on the order of steps has a point, so that crash tests can stop the
daemon between any two steps. With `GFLOW_FAULT_GATE=PATH` passes count only while that file exists, and the
process stops (SIGSTOP) instead: a test then kills any of the daemon's processes at that point.
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
    "end.received",
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
# Points of system mode only: of the scheduler, then of the launcher. An order is a message without an answer.
SYSTEM_POINTS = (
    "forget.before-message",
    "launcher.order-received",
    "launcher.start-checked",
    "launcher.order-done",
    "launcher.call-received",
    "launcher.call-done",
    "launcher.call-answered",
    "launcher.end-received",
    "launcher.end-sent",
)


class _Fault:
    """The armed point, the number of passes left until it fires, and the file without which none counts."""

    def __init__(self, text: str, gate: str) -> None:
        name, _, count = text.partition(":")
        self.name = name
        self.left = int(count or 1)
        self.gate = gate

    def fire_if_due(self) -> None:
        if self.gate and not os.path.exists(self.gate):
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGSTOP if self.gate else signal.SIGKILL)


_armed = _Fault(os.environ.get("GFLOW_FAULT", ""), os.environ.get("GFLOW_FAULT_GATE", ""))


def point(name: str) -> None:
    """Kill or stop this process if a test armed this point. Costs one string comparison otherwise."""
    if name == _armed.name:
        _armed.fire_if_due()
