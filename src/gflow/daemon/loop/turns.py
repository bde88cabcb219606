"""Whose part of what is done to many jobs comes next: users take turns, part by part."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

# Seconds for others after each part: a request of theirs takes several rounds of the event loop.
PAUSE_S = 0.001
# Bulk requests of one user that are under way; further ones wait before they begin.
MOST_PLACES = 2


class Turns:
    """One part at a time, of all requests together, and a pause after each."""

    def __init__(self) -> None:
        self._is_taken = False
        # Who waits, by user; the user whose turn is next comes first.
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
            line = self._waiting.pop(uid)
            while line and line[0].done():  # it was cancelled
                line.popleft()
            if line:
                line.popleft().set_result(None)
                if line:
                    self._waiting[uid] = line  # behind the others
                return
        self._is_taken = False


class Places:
    """How many bulk requests each user has under way."""

    def __init__(self) -> None:
        self._of_user: dict[int, asyncio.Semaphore] = {}

    async def take(self, uid: int) -> Callable[[], None]:
        """Wait for a place; what is returned gives it back."""
        places = self._of_user.setdefault(uid, asyncio.Semaphore(MOST_PLACES))
        await places.acquire()
        return places.release
