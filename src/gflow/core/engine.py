"""The engine: `step(state, event) -> [Effect]`, and the handler of each event.

A handler validates first and changes state afterwards: a refused event (it raises) has changed nothing. Equal
states and equal events give equal effects. The handlers are in `core.lifecycle`; they start jobs through
`core.scheduling.scheduler`. The package docstring is the theory of operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.core.effects import Effect
from gflow.core.events import (
    Abandon,
    Arrive,
    Cancel,
    ChangeReservation,
    Claim,
    Close,
    Drain,
    Event,
    Exited,
    Foresee,
    GpusSeen,
    Hold,
    Idled,
    IdleSeen,
    LeasesSeen,
    Open,
    Overran,
    Progressed,
    Reclaimed,
    Release,
    Reserve,
    Restrict,
    Seen,
    SendSignal,
    SetQuota,
    Stage,
    Stuck,
    Submit,
    Tick,
    Unclaim,
    Unreserve,
    Update,
)
from gflow.core.lifecycle import (
    admin,
    cancel,
    claims,
    finish,
    hold,
    limits,
    machine_events,
    remote,
    staged_submit,
    submit,
    tick,
    update,
)
from gflow.core.state.state import State

Handler = Callable[[State, Any, list[Effect]], None]


def step(state: State, event: Event) -> list[Effect]:
    """Apply one event to the state; return the effects to commit and carry out, in order."""
    effects: list[Effect] = []
    HANDLERS[type(event)](state, event, effects)
    has_changed = True
    while has_changed:
        if state.remote.undecided:
            remote.decide_overflow(state, event.at, effects)
        has_changed = bool(state.dependencies.awaited_starts) and finish.release_started(
            state, event.at, effects
        )
    return effects


HANDLERS: dict[type[Event], Handler] = {
    Submit: submit.submit,
    Open: staged_submit.open_submission,
    Stage: staged_submit.stage,
    Close: staged_submit.close,
    Abandon: staged_submit.abandon,
    Arrive: staged_submit.arrive,
    Claim: claims.claim,
    Unclaim: claims.unclaim,
    Cancel: cancel.cancel,
    SendSignal: cancel.send_signal,
    Hold: hold.hold,
    Release: hold.release,
    Update: update.update,
    Exited: finish.exited,
    Seen: remote.seen,
    Overran: limits.overran,
    Stuck: limits.stuck,
    IdleSeen: limits.idle_seen,
    Idled: limits.idled,
    Progressed: limits.progressed,
    Tick: tick.tick,
    Foresee: tick.record_eta_sample,
    GpusSeen: machine_events.gpus_seen,
    LeasesSeen: machine_events.leases_seen,
    Restrict: machine_events.restrict,
    Drain: machine_events.drain,
    Reclaimed: machine_events.reclaimed,
    SetQuota: admin.set_quota,
    Reserve: admin.reserve,
    ChangeReservation: admin.change_reservation,
    Unreserve: admin.unreserve,
}
