"""Jobs that go to another target if they do not start here soon enough.

A new one is looked at once: if it is not expected to start in time, it goes at once. One that is, and then
does not, goes when its time has come. It leaves the queue here before anybody else hears of it, so one of
the two runs it.
"""

from __future__ import annotations

import heapq

from gflow.core.effects import Effect, Note
from gflow.core.expecting import played_starts
from gflow.core.model import Job, Moment
from gflow.core.rounds import hand_over, run_round
from gflow.core.state import State


def decide(state: State, at: Moment, effects: list[Effect]) -> None:
    """Look at those that are new in the queue, all in one forecast."""
    if state.machine.is_drained:
        return
    waiting = [job for key in sorted(state.undecided) if (job := state.jobs.get(key)) and job in state.ready]
    # A cap holds there as it does here.
    free = [job for job in waiting if not state.is_capped(job)]
    state.undecided = {job.key for job in waiting if state.is_capped(job)}
    if not free:
        return
    starts = played_starts(state, at.boot)
    late = []
    for job in free:
        begin, until = starts.get(job.key), job.overflows_at
        if until is not None and (begin is None or begin > until):
            when = "out of sight" if begin is None else f"expected in {begin - at.boot:.0f} s"
            late.append((job, f"its start here is {when}"))
    _send(state, late, at, effects)


def send_overdue(state: State, at: Moment, effects: list[Effect]) -> None:
    """Those that were expected to start by now."""
    late = []
    while (due := state.alarms.next_overflow()) is not None and due <= at.boot:
        job = state.jobs[heapq.heappop(state.alarms.overflows)[1]]
        if job not in state.ready:
            continue
        if state.machine.is_drained or state.is_capped(job):
            state.undecided.add(job.key)
        else:
            late.append((job, f"it has not started here within {job.spec.patience_s} s"))
    _send(state, late, at, effects)


def _send(state: State, late: list[tuple[Job, str]], at: Moment, effects: list[Effect]) -> None:
    if not late:
        return
    for job, why in late:
        state.leave_line(job)
        job.target = job.spec.overflow
        state.outbound.add(job.key)
        effects.append(Note(job.key, "overflows", f"to {job.target}: {why}"))
    if {promise.key for promise in state.promises} & {job.key for job, _ in late}:
        run_round(state, at, effects)  # nobody has to wait for that one any more
    else:
        hand_over(state, at, effects)
