"""Jobs that other targets have: what those say about them.

A job of another target waits here for its parents and its time like any other. Then it is handed over:
its attempt counts from that moment, and it stays Queued, with the reason that the target gives, until the
target says that it runs. It is never booked: what is free there is the target's business.

Jobs that go to another target if they do not start here soon enough.

A new one is looked at once: if it is not expected to start in time, it goes at once. One that is, and then
does not, goes when its time has come. It leaves the queue here before anybody else hears of it, so one of
the two runs it.
"""

from __future__ import annotations

import heapq

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Save
from gflow.core.events import RemoteStatus, Seen
from gflow.core.forecast.start_time import played_starts
from gflow.core.lifecycle.finish import begin, coming
from gflow.core.model import Job, JobState, Moment
from gflow.core.scheduling.scheduler import hand_over, run_round
from gflow.core.state.state import State


def seen(state: State, event: Seen, effects: list[Effect]) -> None:
    """News about some of them. What is said of an attempt that is over here is old news."""
    freed = False
    for one in event.sightings:
        job = state.jobs.get(one.key)
        if job is None and one.running:
            job = coming(state, one.key, one.attempt, event.at, effects)
        if job is not None and job.attempt == one.attempt and job.key in state.abroad:
            freed |= _told(state, job, one, event.at, effects)
    if freed:
        run_round(state, event.at, effects)


def _told(state: State, job: Job, one: RemoteStatus, at: Moment, effects: list[Effect]) -> bool:
    """Whether something of this machine is free that it kept until now."""
    assert job.abroad is not None
    freed = one.running and job.state is JobState.QUEUED and state.leave_race(job, at.boot)
    before = (job.state, job.reason, job.abroad)
    job.abroad = msgspec.structs.replace(
        job.abroad, id=one.id or job.abroad.id, nodes=one.nodes or job.abroad.nodes
    )
    if job.state is JobState.QUEUED and one.running and not job.is_array:
        begin(job, at)
        where = f" on {job.abroad.nodes}" if job.abroad.nodes else ""
        effects.append(AddAuditEntry(job.key, "started", f"attempt {job.attempt}{where}"))
    elif job.stopping is None:
        job.reason = one.reason
    if (job.state, job.reason, job.abroad) != before:
        effects.append(Save(job))
    return freed


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
        state.leave_queue(job)
        job.target = job.spec.overflow
        state.outbound.add(job.key)
        effects.append(AddAuditEntry(job.key, "overflows", f"to {job.target}: {why}"))
    if {promise.key for promise in state.start_reservations} & {job.key for job, _ in late}:
        run_round(state, at, effects)  # nobody has to wait for that one any more
    else:
        hand_over(state, at, effects)
