"""A submission whose answer was lost is sent again, with the same token: the daemon may be restarting."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from gflow.errors import Unreachable

# How long a daemon may be away before waiting for it is given up.
PATIENCE_S = 60.0
# Who was not there to begin with may just be restarting; more than that is not worth a wait.
ABSENT_S = 2.0
PAUSE_S = 0.05
# After which time people want to know what takes so long.
SILENT_S = 1.0

Answer = tuple[int, bytes, bytes]


def insist(ask: Callable[[], Answer], first: ConnectionError) -> Answer:
    """The answer, once there is one. `first`: what came of the first try."""
    if isinstance(first, ConnectionRefusedError):
        return _again(ask, ABSENT_S, ConnectionError)
    try:
        return _again(ask, PATIENCE_S, (ConnectionError, Unreachable), is_told=True)
    except (ConnectionError, Unreachable):
        raise Unreachable(
            "the daemon went away before it answered, and has not come back",
            hint="what you submitted may be in its queue: look with gqueue when it is up again",
        ) from None


def _again(
    ask: Callable[[], Answer],
    patience_s: float,
    away: type[Exception] | tuple[type[Exception], ...],
    *,
    is_told: bool = False,
) -> Answer:
    began = time.monotonic()
    while True:
        try:
            return ask()
        except away:
            waited = time.monotonic() - began
            if waited > patience_s:
                raise
        if is_told and waited > SILENT_S:
            sys.stderr.write("the daemon went away before it answered; waiting for it to come back\n")
            is_told = False
        time.sleep(PAUSE_S)
