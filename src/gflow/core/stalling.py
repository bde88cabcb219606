"""Starts that fail because the daemon or the machine is short of something: descriptors, processes, memory.

That says nothing about the job. It goes back into the queue, nothing more is started for a while, and then
starts are tried again: after one second, and twice as long each time in a row, up to a minute.
"""

from __future__ import annotations

from gflow.core.model import Moment
from gflow.core.state import State

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


def stall(state: State, why: str, at: Moment) -> None:
    """A start failed for want of something that is not the job's."""
    machine = state.machine
    if not machine.stalled:  # starts that fail together are one failure
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(machine.stalls, 16))
        machine.stalls += 1
        state.alarms.resume_at = at.boot + pause_s
    machine.stalled = why


def resume_due(state: State, at: Moment) -> bool:
    """Let things start again if the pause is over; whether it is just now."""
    due = state.alarms.resume_at
    if due is None or due > at.boot:
        return False
    state.alarms.resume_at = None
    state.machine.stalled = ""
    return True
