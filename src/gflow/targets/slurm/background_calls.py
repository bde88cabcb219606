"""Run blocking calls outside the worker's thread, and hand their results back to it.

The worker's thread owns all state and never waits for a command of Slurm, so a cancel does not wait for
submissions or for a slow listing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

log = logging.getLogger("gflow.slurm")
T = TypeVar("T")


class Calls(Protocol):
    """Runs calls. Tests run them at once."""

    def start(self, call: Callable[[], T], then: Callable[[T], None], otherwise: T) -> None:
        """Run `call`, then `then(its result)` in the worker's thread; `otherwise`: the result if it fails."""


class BackgroundCalls:
    """Runs each call in a thread of its own. The worker bounds how many there are.

    The threads are daemon threads: a hung command must not keep the daemon from exiting.
    """

    def __init__(self, deliver: Callable[[Callable[[], None]], None]) -> None:
        self._deliver = deliver

    def start(self, call: Callable[[], T], then: Callable[[T], None], otherwise: T) -> None:
        def run() -> None:
            result = otherwise
            try:
                result = call()
            except Exception:
                log.exception("a call of Slurm failed")
            self._deliver(lambda: then(result))

        try:
            threading.Thread(target=run, name="slurm-call", daemon=True).start()
        except RuntimeError as error:  # no more threads
            log.warning("no thread for a call of Slurm: %s", error)
            self._deliver(lambda: then(otherwise))


class InlineCalls:
    """Runs each call at once, for tests."""

    def start(self, call: Callable[[], T], then: Callable[[T], None], otherwise: T) -> None:
        then(call())
