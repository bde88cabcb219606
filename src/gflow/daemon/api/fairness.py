"""So that nobody starves the others: what one person may send and ask at once (`connections`: have open).

Only where there are others; root and a daemon's only user are not held back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from gflow.errors import TooMany

# Bytes of requests that are being read, and listings that are being made, of one person at once.
MOST_BYTES = 64 << 20
MOST_LISTINGS = 4
# Streams of events: each is woken by whatever happens.
MOST_STREAMS = 32
# Bytes of environments and scripts that one person may bring at once, and a second. They stay on root's disk.
MOST_KEPT, KEPT_A_SECOND = 1 << 30, (1 << 30) / 3600


class Fairness:
    """What everybody has under way."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        self._bytes: Counter[int] = Counter()
        self._listings: dict[int, asyncio.Semaphore] = {}
        self._streams: Counter[int] = Counter()
        # What each may still bring, and since when that is known.
        self._room: dict[int, tuple[float, float]] = {}

    def _is_free(self, uid: int) -> bool:
        return uid == 0 or not self._is_shared

    def read(self, uid: int, size: int) -> None:
        """Count bytes that have come, until `done`; refuse them where they are too many."""
        self._bytes[uid] += size
        if not self._is_free(uid) and self._bytes[uid] > MOST_BYTES:
            raise TooMany(f"you are sending more than {MOST_BYTES >> 20} MiB at once")

    def done(self, uid: int, size: int) -> None:
        _less(self._bytes, uid, size)

    def keep(self, uid: int, size: int) -> None:
        """Count bytes that are to be kept on the disk; refuse them where they are too many."""
        now = time.monotonic()
        room, at = self._room.get(uid, (MOST_KEPT, now))
        room = min(MOST_KEPT, room + (now - at) * KEPT_A_SECOND)
        if size > room and not self._is_free(uid):
            raise TooMany(
                "you bring more than 1 GiB of environments and scripts an hour",
                hint="jobs that are submitted together can share one environment",
            )
        self._room[uid] = room - size, now

    def listing(self, uid: int) -> AbstractAsyncContextManager[None]:
        """A turn for a listing, which costs memory while it is made."""
        return nullcontext() if self._is_free(uid) else self._turn(uid)

    @asynccontextmanager
    async def stream(self, uid: int) -> AsyncIterator[None]:
        """A stream of events, for as long as it is open."""
        if not self._is_free(uid) and self._streams[uid] >= MOST_STREAMS:
            raise TooMany(f"you have {MOST_STREAMS} streams of events open", hint="one tells of all jobs")
        self._streams[uid] += 1
        try:
            yield
        finally:
            _less(self._streams, uid, 1)

    @asynccontextmanager
    async def _turn(self, uid: int) -> AsyncIterator[None]:
        semaphore = self._listings.setdefault(uid, asyncio.Semaphore(MOST_LISTINGS))
        async with semaphore:
            yield


def _less(counts: Counter[int], who: int, by: int) -> None:
    counts[who] -= by
    if counts[who] <= 0:
        del counts[who]
