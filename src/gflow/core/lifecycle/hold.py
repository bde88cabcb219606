"""Hold and release of waiting jobs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Save, Withdraw
from gflow.core.events import Hold, Release, UserAction
from gflow.core.ids import JobKey, label
from gflow.core.lifecycle.cancel import authorize_jobs, release_claims
from gflow.core.model import Job, JobState
from gflow.core.reasons import HELD
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.state import State
from gflow.core.transitions import move
from gflow.errors import Hint, Refused


def authorize_whole_jobs(state: State, keys: Iterable[JobKey], action: UserAction) -> list[Job]:
    """Return the jobs if the user may act on them; refuse tasks that have not left their array."""
    for key in keys:
        if key not in state.jobs and (array := state.jobs.array_with(key)):
            raise Refused(f"task {label(key)} waits in its array", hint=f"name the array: {array.label}")
    return authorize_jobs(state, keys, action)


def hold(state: State, event: Hold, effects: list[Effect]) -> None:
    """Hold waiting jobs. A job that another target has is withdrawn from there first."""
    jobs = check_hold(state, event)
    release_claims(state, event, event.keys, effects)
    jobs = [job for job in jobs if not job.is_final]
    for job in jobs:
        if job.key in state.remote.jobs:
            state.leave_race(job, event.at.boot)
            _hold_remote(job, effects)
        elif job.state is JobState.QUEUED:
            state.leave_queue(job)
            move(job, JobState.HOLD, HELD)
            effects += (Save(job), AddAuditEntry(job.key, "held"))
    run_round(state, event.at, effects)  # start reservations may be gone: other jobs may start


def check_hold(state: State, event: Hold) -> list[Job]:
    """Return the jobs to hold; refuse if one of them is running."""
    jobs = authorize_whole_jobs(state, event.keys, event)
    for job in jobs:
        if job.state is JobState.RUNNING:
            raise Refused(f"job {job.label} is running, and only a waiting job can be held")
    return jobs


def _hold_remote(job: Job, effects: list[Effect]) -> None:
    """Withdraw a remote job and hold it once it is back. If it has begun there meanwhile, it runs."""
    assert job.remote is not None
    job.remote = msgspec.structs.replace(job.remote, hold=True)
    effects += (Save(job), AddAuditEntry(job.key, "held"), Withdraw(job.key, job.attempt))


def release(state: State, event: Release, effects: list[Effect]) -> None:
    """Release held jobs; with `begin_at`, set the begin time of waiting jobs too."""
    jobs = check_release(state, event)
    release_claims(state, event, event.keys, effects)
    for job in jobs:
        if job.is_final:
            continue
        if job.remote is not None:
            if job.remote.hold and job.spec.races_here:
                state.ready.add(job)
            job.remote = msgspec.structs.replace(job.remote, hold=False)
            effects += (Save(job), AddAuditEntry(job.key, "released"))
            continue
        if event.begin_at is not None:
            state.leave_queue(job)
            job.spec = msgspec.structs.replace(job.spec, begin_at=event.begin_at)
            job.set_retry_delay(0, event.at)
        elif job.state is not JobState.HOLD:
            continue
        if job.state is JobState.HOLD:
            move(job, JobState.QUEUED)
        state.admit(job, event.at)
        effects += (Save(job), AddAuditEntry(job.key, "released"))
    run_round(state, event.at, effects)


def check_release(state: State, event: Release) -> list[Job]:
    """Return the jobs to release; refuse if one is running, or is remote and gets a begin time."""
    jobs = authorize_whole_jobs(state, event.keys, event)
    for job in jobs:
        if job.state is JobState.RUNNING:
            raise Refused(f"job {job.label} is running, and only a held job can be released")
        if job.key in state.remote.jobs and event.begin_at is not None:
            hint = Hint("hold_first", f"hold job {job.label} first", job=job.label)
            raise Refused(f"{job.target} has job {job.label} already", hint=hint)
    return jobs
