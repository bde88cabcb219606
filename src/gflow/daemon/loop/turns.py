"""Round-robin turns for bulk work: users take turns, one part of PART jobs at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

# Pause after each part, in seconds: another request takes several iterations of the event loop.
PAUSE_S = 0.001
# Bulk requests that one user may have in progress; further ones wait before they begin.
MAX_PLACES = 2


class Turns:
    """Runs one part at a time, with a pause after each, round-robin over the users."""

    def __init__(self) -> None:
        self._is_taken = False
        # Waiting parts by user. The first user in the dictionary is next.
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, uid: int) -> AsyncIterator[None]:
        await self._take(uid)
        try:
            yield
        finally:
            try:
                await asyncio.sleep(PAUSE_S)
            finally:
                self._pass_on()

    async def _take(self, uid: int) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            uid = next(iter(self._waiting))
            parts = self._waiting.pop(uid)
            while parts and parts[0].done():  # it was cancelled
                parts.popleft()
            if parts:
                parts.popleft().set_result(None)
                if parts:
                    self._waiting[uid] = parts  # now last in the dictionary
                return
        self._is_taken = False


class Places:
    """Limits the bulk requests that each user has in progress."""

    def __init__(self) -> None:
        self._of_user: dict[int, asyncio.Semaphore] = {}

    async def take(self, uid: int) -> Callable[[], None]:
        """Wait for a place; the returned function releases it."""
        places = self._of_user.setdefault(uid, asyncio.Semaphore(MAX_PLACES))
        await places.acquire()
        return places.release
