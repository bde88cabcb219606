"""Draining: nothing more starts, at all or on some GPUs, until somebody resumes. What runs goes on."""

from __future__ import annotations

import msgspec

from gflow.core.effects import Effect, Keep
from gflow.core.events import Drain
from gflow.core.policy import DRAINED, Drained
from gflow.core.rounds import run_round
from gflow.core.state import State
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
