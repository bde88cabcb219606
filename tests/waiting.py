"""Waiting for a condition. Standard library only: the benchmarks use it too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# The pause grows with the time that has passed: a question each 10 ms, most of which start a request to a
# daemon, would take a tenth of a core of each waiting test.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.05


def wait_until(condition: Callable[[], T], timeout_s: float = 60.0, what: str = "") -> T:
    """The first true value of `condition`; fails the test when it never comes."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise AssertionError(f"waited {timeout_s} s in vain for {what or condition}")
        time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, waited_s / 10)))
