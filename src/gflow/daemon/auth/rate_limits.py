"""Per-user limits on concurrent work: bodies, listings, expansions, event streams, and stored bytes.

They apply in system mode only, and never to root. Limits on open connections are in `connections`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext

from gflow.daemon.auth.users import accounting_uid
from gflow.errors import TooMany

# Per user: bytes of bodies that are being received, and listings that are being made.
MOST_BYTES = 64 << 20
MOST_LISTINGS = 4
# Per user: bytes of commands in unfinished submissions. One request may use all of it
# (`request.MOST_COMMANDS`).
MOST_HELD = 256 << 20
# Submissions that are being expanded, over all users. One user has at most one.
MOST_EXPANSIONS = 2
# Event streams per user. Every event wakes each of them.
MOST_STREAMS = 32


class RateLimits:
    """Counts the work in progress of each user, and refuses what exceeds a limit."""

    def __init__(self, *, is_shared: bool = False, most_stored: int = 0) -> None:
        self._is_shared = is_shared
        # Bytes of environments, scripts and long specs that one user's jobs may store in the database.
        self._most_stored = most_stored
        self._bytes: Counter[int] = Counter()
        self._listings: dict[int, asyncio.Semaphore] = {}
        self._streams: Counter[int] = Counter()
        self._held: Counter[int] = Counter()
        self._expansions = asyncio.Semaphore(MOST_EXPANSIONS)
        self._expanding: dict[int, asyncio.Lock] = {}
        # Bytes that each user's jobs stored at the last count, and bytes added since.
        self._stored: dict[int, int] = {}
        self._added: Counter[int] = Counter()

    def _is_exempt(self, uid: int) -> bool:
        return uid == 0 or not self._is_shared

    def count_received(self, uid: int, size: int) -> None:
        """Count received bytes until `release_received`. Raises TooMany above the limit.

        `uid`: the result of `accounting_uid`, the same for both calls.
        """
        self._bytes[uid] += size
        if not self._is_exempt(uid) and self._bytes[uid] > MOST_BYTES:
            raise TooMany(f"you are sending more than {MOST_BYTES >> 20} MiB at once")

    def release_received(self, uid: int, size: int) -> None:
        _subtract(self._bytes, uid, size)

    def count_stored(self, uid: int, size: int) -> None:
        """Count bytes that are to be stored in the database. Raises TooMany above the limit."""
        if not size or self._is_exempt(uid):
            return
        now = self._stored.get(uid, 0) + self._added[uid]
        if now + size > self._most_stored:
            raise TooMany(
                f"environments, scripts and long commands of your jobs take {now >> 20} of "
                f"{self._most_stored >> 20} MiB, "
                f"and these would take {size / (1 << 20):.1f} more",
                hint="submit with --export NONE or fewer variables, and scripts instead of long commands: "
                "equal ones are stored once, and those of jobs that never ran are deleted within two hours",
            )
        self._added[uid] += size

    def stored_since_count(self) -> Counter[int]:
        """Bytes added since the last count, by uid."""
        return self._added.copy()

    def set_stored(self, kept: dict[int, int], before: Counter[int]) -> None:
        """Set the stored bytes to a new count. `before`: `stored_since_count()` when the count began."""
        self._stored, self._added = kept, self._added - before

    def listing_turn(self, uid: int) -> AbstractAsyncContextManager[None]:
        """Wait for a turn to make a listing, which holds memory until it is sent."""
        return nullcontext() if self._is_exempt(uid) else self._wait_for_listing(accounting_uid(uid))

    @contextmanager
    def count_held(self, uid: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes held in memory until the end of the context.

        It raises TooMany above the limit.
        """
        sizes: list[int] = []
        uid = accounting_uid(uid)

        def hold(size: int) -> None:
            sizes.append(size)
            self._held[uid] += size
            if not self._is_exempt(uid) and self._held[uid] > MOST_HELD:
                raise TooMany(
                    f"your submissions under way have more than {MOST_HELD >> 20} MiB of commands",
                    hint="wait for some of them to end",
                )

        try:
            yield hold
        finally:
            _subtract(self._held, uid, sum(sizes))

    @asynccontextmanager
    async def expansion_turn(self, uid: int) -> AsyncIterator[None]:
        """Wait for a turn to expand many jobs. A user has one at a time, so that users alternate."""
        lock = self._expanding.setdefault(accounting_uid(uid), asyncio.Lock())
        async with lock, self._expansions:
            yield

    @asynccontextmanager
    async def count_stream(self, uid: int) -> AsyncIterator[None]:
        """Count an event stream while it is open. Raises TooMany above the limit."""
        uid = accounting_uid(uid)
        if not self._is_exempt(uid) and self._streams[uid] >= MOST_STREAMS:
            raise TooMany(
                f"you have {MOST_STREAMS} event streams open", hint="one stream has the events of all jobs"
            )
        self._streams[uid] += 1
        try:
            yield
        finally:
            _subtract(self._streams, uid, 1)

    @asynccontextmanager
    async def _wait_for_listing(self, uid: int) -> AsyncIterator[None]:
        semaphore = self._listings.setdefault(uid, asyncio.Semaphore(MOST_LISTINGS))
        async with semaphore:
            yield


def _subtract(counts: Counter[int], uid: int, amount: int) -> None:
    counts[uid] -= amount
    if counts[uid] <= 0:
        del counts[uid]
