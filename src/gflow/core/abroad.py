"""Jobs that other targets have: what those say about them.

A job of another target waits here for its parents and its time like any other. Then it is handed over:
its attempt counts from that moment, and it stays Queued, with the reason that the target gives, until the
target says that it runs. It is never booked: what is free there is the target's business.
"""

from __future__ import annotations

import msgspec

from gflow.core.effects import Effect, Note, Save
from gflow.core.ending import begin, coming
from gflow.core.events import Seen, Sighting
from gflow.core.model import Job, JobState, Moment
from gflow.core.rounds import run_round
from gflow.core.state import State


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


def _told(state: State, job: Job, one: Sighting, at: Moment, effects: list[Effect]) -> bool:
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
        effects.append(Note(job.key, "started", f"attempt {job.attempt}{where}"))
    elif job.stopping is None:
        job.reason = one.reason
    if (job.state, job.reason, job.abroad) != before:
        effects.append(Save(job))
    return freed
