"""Eviction: jobs of other users that hold reserved GPUs when a GPU reservation begins are stopped.

They get the stop contract. Jobs with --requeue or --preemptible return to the queue; the others end
Cancelled, with the reservation as the reason. That includes jobs that started before the reservation was
made: the operator who makes it is shown which jobs it will stop.
"""

from __future__ import annotations

from gflow.core.effects import AddAuditEntry, Effect, Save, Stop
from gflow.core.model import Job, Moment
from gflow.core.reasons import Reason, ReasonKind
from gflow.core.state.reservations import Reservation, hard_end, spell_reserved
from gflow.core.state.state import State
from gflow.core.transitions import CANCELLED, QUEUED


def free_reserved(state: State, effects: list[Effect]) -> None:
    """Stop every job on GPUs whose reservation for another user has begun."""
    for one in state.reserved.active:
        for job in holders(state, one.user, one.gpus):
            if job.stopping is None:
                _stop(state, job, one, effects)


def holders(state: State, user: str, gpus: tuple[int, ...]) -> list[Job]:
    """Running jobs of other users on these GPUs, by id."""
    keys = {key for gpu in gpus for key in state.machine.holders.get(gpu, ())}
    jobs = [state.running[key] for key in sorted(keys) if key in state.running]
    return [job for job in jobs if job.user != user]


def jobs_to_evict(state: State, user: str, gpus: tuple[int, ...], start: float, at: Moment) -> list[Job]:
    """Running jobs of other users that may still hold these GPUs at `start` (wall clock)."""
    return [
        job
        for job in holders(state, user, gpus)
        if job.stopping is None and hard_end(job, job.spec, at) > start
    ]


def _stop(state: State, job: Job, one: Reservation, effects: list[Effect]) -> None:
    gpus = sorted(set(job.gpu_ids).intersection(one.gpus))
    why = spell_reserved(gpus, [one.user], state.policy.is_private)
    job.stopping = QUEUED if job.spec.requeue or job.spec.preemptible else CANCELLED
    job.reason = Reason(ReasonKind.RESERVED, why)
    state.running.note_stop(job)
    effects += (Save(job), AddAuditEntry(job.key, "reserved", why), Stop(job.key, job.attempt))
