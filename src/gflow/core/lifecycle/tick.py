"""Time-driven work: deadlines that a tick finds due, and ETA samples.

A tick sends warnings, enforces time limits, admits jobs whose begin time or retry delay has passed, lets
starts resume after a stall, and hands over jobs that waited too long here.
"""

from __future__ import annotations

import heapq

from gflow.core.effects import Effect, Save
from gflow.core.events import Foresee, Tick
from gflow.core.ids import JobKey
from gflow.core.lifecycle import limits, remote
from gflow.core.lifecycle.machine_events import resume_due
from gflow.core.model import Moment
from gflow.core.scheduling.scheduler import run_round, start_among
from gflow.core.state.queue_index import Group
from gflow.core.state.state import State


def tick(state: State, event: Tick, effects: list[Effect]) -> None:
    """Handle everything that is due by now. A full round is run only if something may have become free."""
    limits.warn_due(state, event.at, effects)
    limits.stop_overdue(state, event.at, effects)
    has_postponed = state.postpone(event.at)
    due = admit_due(state, event.at, effects)
    # A reserved start has passed: a running job outlived its estimate, so the reservation is recomputed.
    is_late = state.start_reservations.is_late(event.at.boot)
    has_changed = state.reserved.live and state.reserved.pass_time(event.at.wall)
    if resume_due(state, event.at) or has_changed or is_late or has_postponed:
        run_round(state, event.at, effects)
    elif due:
        start_among(state, due, event.at, effects)
    remote.overflow_due(state, event.at, effects)


def record_eta_sample(state: State, event: Foresee, effects: list[Effect]) -> None:
    """Record the ETA given for a queued job; drop samples of jobs that left the queue.

    The samples calibrate `gjob why`. No scheduling decision depends on them.
    """
    calibration = state.eta_calibration
    calibration.keep_only(
        key for key in calibration.record.open if key in state.jobs and state.jobs[key] in state.ready
    )
    job = state.jobs.get(event.key)
    if event.case is not None and job is not None and job in state.ready:
        calibration.add_sample(job.key, event.case)


def admit_due(state: State, at: Moment, effects: list[Effect]) -> set[Group | None]:
    """Admit jobs whose begin time or retry delay has passed; return the equivalence classes they joined."""
    deadlines = state.deadlines
    # Each key once: after a change of the clock a job may have several entries.
    begun, over = dict[JobKey, None](), dict[JobKey, None]()
    while (begin := deadlines.next_begin()) is not None and begin <= at.wall:
        begun[heapq.heappop(deadlines.begins)[1]] = None
    due = {_admit_one(state, key, at, effects) for key in begun}
    while (retry := deadlines.next_retry()) is not None and retry <= at.boot:
        over[heapq.heappop(deadlines.retries)[1]] = None
    return due | {_admit_one(state, key, at, effects) for key in over}


def _admit_one(state: State, key: JobKey, at: Moment, effects: list[Effect]) -> Group | None:
    state.deadlines.later.discard(key)
    effects.append(Save(state.jobs[key]))
    return state.admit(state.jobs[key], at)
