"""So that nobody starves the others: what one person may send and ask at once (`connections`: have open).

Only where there are others; root and a daemon's only user are not held back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext

from gflow.daemon.auth.users import counted_as
from gflow.errors import TooMany

# Bytes of requests that are being read, and listings that are being made, of one person at once.
MOST_BYTES = 64 << 20
MOST_LISTINGS = 4
# Bytes of commands in submissions that are under way. One request may have all of it: `asking.MOST_COMMANDS`.
MOST_HELD = 256 << 20
# Submissions that are being expanded, of all users together; of one user, one.
MOST_EXPANSIONS = 2
# Streams of events: each is woken by whatever happens.
MOST_STREAMS = 32


class Fairness:
    """What everybody has under way."""

    def __init__(self, *, is_shared: bool = False, most_kept: int = 0) -> None:
        self._is_shared = is_shared
        # Bytes of environments, scripts and long specs that one person's jobs may keep on root's disk.
        self._most_kept = most_kept
        self._bytes: Counter[int] = Counter()
        self._listings: dict[int, asyncio.Semaphore] = {}
        self._streams: Counter[int] = Counter()
        self._held: Counter[int] = Counter()
        self._expansions = asyncio.Semaphore(MOST_EXPANSIONS)
        self._expanding: dict[int, asyncio.Lock] = {}
        # Bytes that each person's jobs kept when they were last counted, and what came since.
        self._kept: dict[int, int] = {}
        self._brought: Counter[int] = Counter()

    def _is_free(self, uid: int) -> bool:
        return uid == 0 or not self._is_shared

    def read(self, uid: int, size: int) -> None:
        """Count bytes that have come, until `done`; refuse them where they are too many.

        `uid`: as whom it is counted, the same for both.
        """
        self._bytes[uid] += size
        if not self._is_free(uid) and self._bytes[uid] > MOST_BYTES:
            raise TooMany(f"you are sending more than {MOST_BYTES >> 20} MiB at once")

    def done(self, uid: int, size: int) -> None:
        _less(self._bytes, uid, size)

    def keep(self, uid: int, size: int) -> None:
        """Count new bytes that are to be kept on the disk; refuse them where they are too many."""
        if not size or self._is_free(uid):
            return
        now = self._kept.get(uid, 0) + self._brought[uid]
        if now + size > self._most_kept:
            raise TooMany(
                f"environments, scripts and long commands of your jobs take {now >> 20} of "
                f"{self._most_kept >> 20} MiB, "
                f"and these would take {size / (1 << 20):.1f} more",
                hint="submit with --export NONE or fewer variables, and scripts instead of long commands: "
                "equal ones are kept once, and those of jobs that never ran go within two hours",
            )
        self._brought[uid] += size

    def brought(self) -> Counter[int]:
        """Bytes that came since the last count, by uid."""
        return self._brought.copy()

    def counted(self, kept: dict[int, int], before: Counter[int]) -> None:
        """What the database has; `before`: what had come when the count began."""
        self._kept, self._brought = kept, self._brought - before

    def listing(self, uid: int) -> AbstractAsyncContextManager[None]:
        """A turn for a listing, which costs memory while it is made."""
        return nullcontext() if self._is_free(uid) else self._turn(counted_as(uid))

    @contextmanager
    def holding(self, uid: int) -> Iterator[Callable[[int], None]]:
        """Takes sizes of what is held in memory from now to the end; refuses what is too much."""
        sizes: list[int] = []
        uid = counted_as(uid)

        def hold(size: int) -> None:
            sizes.append(size)
            self._held[uid] += size
            if not self._is_free(uid) and self._held[uid] > MOST_HELD:
                raise TooMany(
                    f"your submissions under way have more than {MOST_HELD >> 20} MiB of commands",
                    hint="wait for some of them to end",
                )

        try:
            yield hold
        finally:
            _less(self._held, uid, sum(sizes))

    @asynccontextmanager
    async def expansion(self, uid: int) -> AsyncIterator[None]:
        """A turn to expand many jobs. A user has one at a time, so that users alternate."""
        lock = self._expanding.setdefault(counted_as(uid), asyncio.Lock())
        async with lock, self._expansions:
            yield

    @asynccontextmanager
    async def stream(self, uid: int) -> AsyncIterator[None]:
        """A stream of events, for as long as it is open."""
        uid = counted_as(uid)
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
