"""Waiting for a condition. Standard library only: the benchmarks use it too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float = 60.0, what: str = "") -> T:
    """The first true value of `condition`; fails the test when it never comes."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s} s in vain for {what or condition}")
        time.sleep(0.01)
