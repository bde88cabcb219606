"""Retry a submission whose answer was lost, with the same token: the daemon may be restarting."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from gflow.errors import Unreachable

# Seconds to wait for a daemon that went away.
PATIENCE_S = 60.0
# Seconds to wait for a daemon that refused the first connection: it may be restarting.
ABSENT_S = 2.0
PAUSE_S = 0.05
# Seconds of waiting before a message is printed.
SILENT_S = 1.0

Answer = tuple[int, bytes, bytes]


def retry(ask: Callable[[], Answer], first: ConnectionError) -> Answer:
    """Repeat the request until it is answered. `first`: the error of the first try."""
    if isinstance(first, ConnectionRefusedError):
        return _repeat(ask, ABSENT_S, ConnectionError)
    try:
        return _repeat(ask, PATIENCE_S, (ConnectionError, Unreachable), has_message=True)
    except (ConnectionError, Unreachable):
        raise Unreachable(
            "the connection to the daemon was lost before it answered, and the daemon has not come back",
            hint="your submission may be in its queue: check with gqueue when the daemon is up again",
        ) from None


def _repeat(
    ask: Callable[[], Answer],
    patience_s: float,
    away: type[Exception] | tuple[type[Exception], ...],
    *,
    has_message: bool = False,
) -> Answer:
    began = time.monotonic()
    while True:
        try:
            return ask()
        except away:
            waited = time.monotonic() - began
            if waited > patience_s:
                raise
        if has_message and waited > SILENT_S:
            sys.stderr.write(
                "the connection to the daemon was lost before it answered; waiting for the daemon\n"
            )
            has_message = False
        time.sleep(PAUSE_S)
