"""Threads for what users ask: a turn for each user, and no work for a client that has hung up.

A pool of its own: what the daemon does for itself (backups, tokens, notifications) never waits behind it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from gflow.daemon.auth.users import counted_as
from gflow.errors import StoreError
from gflow.store.reader import Reader

T = TypeVar("T")
WORKERS = 4
# Of one user at once, where there are others.
OF_USER = 2


class _Turn:
    """The turns of one user, and how many tasks have one or wait for one."""

    def __init__(self, most: int) -> None:
        self.semaphore = asyncio.Semaphore(most)
        self.tasks = 0


class Threads:
    """The pool. All methods are called from the daemon's loop."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.pool = ThreadPoolExecutor(WORKERS, "gflow-question")
        self._of_user = OF_USER if is_shared else WORKERS
        self._turns: dict[int, _Turn] = {}
        self._stops: set[Callable[[], None]] = set()

    async def run(
        self, uid: int, work: Callable[..., T], *args: Any, stop: Callable[[], None] | None = None
    ) -> T:
        """Run `work` in a thread when it is this user's turn; see `run_now`."""
        async with self.turn(uid):
            return await self.run_now(work, *args, stop=stop)

    async def run_now(self, work: Callable[..., T], *args: Any, stop: Callable[[], None] | None = None) -> T:
        """Run `work` in a thread; the caller has a user's turn.

        Cancelled, it is not begun; or, if it runs, told to `stop`, and this lasts until it has.
        """
        running = self.pool.submit(partial(work, *args))
        done = asyncio.wrap_future(running)
        if stop is not None:
            self._stops.add(stop)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not running.cancel():
                if stop is not None:
                    stop()
                await asyncio.wait([done])
            raise
        finally:
            if stop is not None:
                self._stops.discard(stop)

    async def read(self, uid: int, open_reader: Callable[[], Reader], work: Callable[[Reader], T]) -> T:
        """Run `work` with a reader of the database; its query is interrupted when this is cancelled."""
        one = _Reading(open_reader, work)
        return await self.run(uid, one, stop=one.stop)

    def close(self, within_s: float) -> None:
        """Drop what has not begun, interrupt what runs, and wait for that, but not for ever."""
        for stop in self._stops:
            stop()
        end_pool(self.pool, within_s)

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[None]:
        """One of the few turns that a user has at once."""
        uid = counted_as(uid)
        turn = self._turns.setdefault(uid, _Turn(self._of_user))
        turn.tasks += 1
        try:
            async with turn.semaphore:
                yield
        finally:
            turn.tasks -= 1
            if not turn.tasks:
                del self._turns[uid]


class _Reading(Generic[T]):
    """A question to the database that can be stopped from another thread."""

    def __init__(self, open_reader: Callable[[], Reader], work: Callable[[Reader], T]) -> None:
        self._open = open_reader
        self._work = work
        self._reader: Reader | None = None
        self._is_stopped = False

    def __call__(self) -> T:
        reader = self._reader = self._open()
        try:
            if self._is_stopped:
                raise StoreError("the question was given up")
            return self._work(reader)
        finally:
            reader.close()

    def stop(self) -> None:
        self._is_stopped = True
        if self._reader is not None:
            with suppress(sqlite3.ProgrammingError):  # it is closed already
                self._reader.interrupt()


def end_pool(pool: Executor, within_s: float) -> None:
    """Shut a pool down: what has not begun is dropped, what runs is waited for as long as this."""
    ending = threading.Thread(
        target=pool.shutdown, kwargs={"wait": True, "cancel_futures": True}, daemon=True
    )
    ending.start()
    ending.join(within_s)
