"""Claims: a bulk change is checked for all its jobs first, and none of them starts until it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.core.effects import Claimed, Effect
from gflow.core.events import Cancel, Claim, Hold, Release, Unclaim, Update, UserAction
from gflow.core.lifecycle.cancel import check_cancel
from gflow.core.lifecycle.hold import check_hold, check_release
from gflow.core.lifecycle.update import check_update
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.state import State

CHECKS: dict[type[UserAction], Callable[[State, Any], Any]] = {
    Cancel: check_cancel,
    Hold: check_hold,
    Release: check_release,
}


def claim(state: State, event: Claim, effects: list[Effect]) -> None:
    """Check one part of a bulk change, and keep its jobs from starting."""
    action, size, links = event.action, 0, 0
    if isinstance(action, Update):
        size, links = check_update(state, action, event.size, event.links)
    else:
        CHECKS[type(action)](state, action)
    if not isinstance(action, Release):  # a held job does not start anyway
        state.claimed.update(action.keys)
    effects.append(Claimed(size, links))


def unclaim(state: State, event: Unclaim, effects: list[Effect]) -> None:
    """Drop claims: the jobs that still wait may start again."""
    state.claimed.difference_update(event.keys)
    run_round(state, event.at, effects)
