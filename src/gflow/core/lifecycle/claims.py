"""What is done to many jobs in parts is judged for all of them first, and none of them starts meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gflow.core.effects import Claimed, Effect
from gflow.core.events import Cancel, Claim, Hold, Release, Unclaim, Update, UserAction
from gflow.core.lifecycle.cancel import check_cancel, check_hold, check_release
from gflow.core.lifecycle.update import check_update
from gflow.core.scheduling.scheduler import run_round
from gflow.core.state.state import State

CHECKS: dict[type[UserAction], Callable[[State, Any], Any]] = {
    Cancel: check_cancel,
    Hold: check_hold,
    Release: check_release,
}


def claim(state: State, event: Claim, effects: list[Effect]) -> None:
    """Judge what is to be done to some of the jobs, and keep them from starting."""
    deed, size, links = event.deed, 0, 0
    if isinstance(deed, Update):
        size, links = check_update(state, deed, event.size, event.links)
    else:
        CHECKS[type(deed)](state, deed)
    if not isinstance(deed, Release):  # who is held does not start anyway
        state.claimed.update(deed.keys)
    effects.append(Claimed(size, links))


def unclaim(state: State, event: Unclaim, effects: list[Effect]) -> None:
    """Those that still wait may start again."""
    state.claimed.difference_update(event.keys)
    run_round(state, event.at, effects)
