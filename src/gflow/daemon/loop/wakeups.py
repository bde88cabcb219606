"""Wakes tasks that wait for new audit entries. The tasks read the entries from the store themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")
# Cached reads, see `shared`.
MAX_SHARED = 64


class Wakeups:
    """The waiting tasks. Waking costs nothing while no task waits."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._read: dict[Hashable, Any] = {}

    def wake(self) -> None:
        """Wake all waiting tasks, after a commit with audit entries."""
        self._read.clear()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def shared(self, what: Hashable, read: Callable[[], T]) -> T:
        """The result of `read`, cached until the next `wake`: hundreds of clients may wait for the same."""
        if what not in self._read:
            if len(self._read) >= MAX_SHARED:  # clients that read from different positions in the past
                self._read.clear()
            self._read[what] = read()
        found: T = self._read[what]
        return found

    async def wait(self, seconds: float) -> bool:
        """Wait for the next `wake`; False if none comes within `seconds`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True
