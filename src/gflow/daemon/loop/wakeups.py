"""Waking those who wait for something to happen. What happened, they read from the store themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")
MOST_SHARED = 64


class News:
    """Costs nothing while nobody waits."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._read: dict[Hashable, Any] = {}

    def tell(self) -> None:
        """Something happened, and it is durable."""
        self._read.clear()
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def shared(self, what: Hashable, read: Callable[[], T]) -> T:
        """What `read` gives, read once for all who ask until something else happens: hundreds may listen."""
        if what not in self._read:
            if len(self._read) >= MOST_SHARED:  # some read the past, and each something else
                self._read.clear()
            self._read[what] = read()
        found: T = self._read[what]
        return found

    async def wait(self, seconds: float) -> bool:
        """Until something happens; False if nothing does for so long."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True
