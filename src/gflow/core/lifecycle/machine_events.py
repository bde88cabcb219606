"""Draining: nothing more starts, at all or on some GPUs, until somebody resumes. What runs goes on.

The cloud takes this machine away: what runs is stopped with the time that is left, nothing more starts.

Jobs that may go back into the queue (--requeue, --preemptible) do, whatever their exit code: this is nobody's
failure. The others end Failed, as they would when the machine is gone, but had the time to save their work.

Starts that fail because the daemon or the machine is short of something: descriptors, processes, memory.

That says nothing about the job. It goes back into the queue, nothing more is started for a while, and then
starts are tried again: after one second, and twice as long each time in a row, up to a minute.
"""

from __future__ import annotations

import msgspec

from gflow.core.effects import AddAuditEntry, Effect, Keep, Save, Stop
from gflow.core.events import Drain, Reclaimed
from gflow.core.model import LOCAL, PREEMPTED, JobState, Moment
from gflow.core.policy import DRAINED, Drained
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.state import State
from gflow.errors import Refused


def drain(state: State, event: Drain, effects: list[Effect]) -> None:
    if unknown := sorted(set(event.gpus or ()) - set(state.machine.gpus)):
        raise Refused(f"there is no GPU {unknown[0]} here", hint="see what there is with ginfo")
    if event.passing:
        state.machine.leaving = event.on
    else:
        if not event.on and event.gpus is None:  # also for a daemon that was to leave and did not
            state.machine.leaving, state.machine.reclaimed = False, ""
        state.machine.drained = _changed(state.machine.drained, event)
        effects.append(Keep(DRAINED, msgspec.json.encode(state.machine.drained).decode()))
        state.machine.recount()
    run_round(state, event.at, effects)


def _changed(old: Drained, event: Drain) -> Drained:
    if event.gpus is None:
        return Drained(everything=event.reason, gpus=old.gpus) if event.on else Drained()
    gpus = {index: why for index, why in old.gpus.items() if index not in event.gpus}
    if event.on:
        gpus |= dict.fromkeys(event.gpus, event.reason)
    return Drained(everything=old.everything, gpus=gpus)


# What is kept of the time that is left, to write down how jobs ended.
SPARE_S = 5.0
LEAST_GRACE_S = 2


def reclaimed(state: State, event: Reclaimed, effects: list[Effect]) -> None:
    """A notice, or (`why` is empty) that there is none any more."""
    state.machine.reclaimed = event.why
    if event.why:
        effects.append(AddAuditEntry(None, "spot notice", event.why))
        # 0: nobody said how long, so each has its own grace time.
        grace_s = 0 if event.left_s is None else max(LEAST_GRACE_S, int(event.left_s - SPARE_S))
        for _, job in sorted(state.running.items()):  # in the same order after a restart
            if job.target != LOCAL or job.stopping is not None:
                continue
            goes_back = job.spec.requeue or job.spec.preemptible
            job.stopping = JobState.QUEUED if goes_back else JobState.FAILED
            job.reason = PREEMPTED + event.why
            state.note_stop(job)
            note = AddAuditEntry(job.key, "preempted", event.why)
            effects += (Save(job), note, Stop(job.key, job.attempt, grace_s=grace_s))
    else:
        effects.append(AddAuditEntry(None, "spot notice", "withdrawn"))
    run_round(state, event.at, effects)


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
