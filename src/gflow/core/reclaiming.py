"""The cloud takes this machine away: what runs is stopped with the time that is left, nothing more starts.

Jobs that may go back into the queue (--requeue, --preemptible) do, whatever their exit code: this is nobody's
failure. The others end Failed, as they would when the machine is gone, but had the time to save their work.
"""

from __future__ import annotations

from gflow.core.effects import Effect, Note, Save, Stop
from gflow.core.events import Reclaimed
from gflow.core.model import LOCAL, PREEMPTED, JobState
from gflow.core.rounds import run_round
from gflow.core.state import State

# What is kept of the time that is left, to write down how jobs ended.
SPARE_S = 5.0
LEAST_GRACE_S = 2


def reclaimed(state: State, event: Reclaimed, effects: list[Effect]) -> None:
    """A notice, or (`why` is empty) that there is none any more."""
    state.machine.reclaimed = event.why
    if event.why:
        effects.append(Note(None, "spot notice", event.why))
        # 0: nobody said how long, so each has its own grace time.
        grace_s = 0 if event.left_s is None else max(LEAST_GRACE_S, int(event.left_s - SPARE_S))
        for _, job in sorted(state.running.items()):  # in the same order after a restart
            if job.target != LOCAL or job.stopping is not None:
                continue
            goes_back = job.spec.requeue or job.spec.preemptible
            job.stopping = JobState.QUEUED if goes_back else JobState.FAILED
            job.reason = PREEMPTED + event.why
            state.note_stop(job)
            note = Note(job.key, "preempted", event.why)
            effects += (Save(job), note, Stop(job.key, job.attempt, grace_s=grace_s))
    else:
        effects.append(Note(None, "spot notice", "withdrawn"))
    run_round(state, event.at, effects)
