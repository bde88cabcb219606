"""A thread pool for requests of users, with a limit per user. Work of disconnected clients is cancelled.

Work of the daemon itself (backups, tokens, notifications) uses another pool, and so never waits behind it.
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

from gflow.daemon.auth.users import accounting_uid
from gflow.errors import StoreError
from gflow.store.reader import Reader

T = TypeVar("T")
WORKERS = 4
# Threads that one user may occupy at once, in a daemon for several users.
MAX_PER_USER = 2


class _Turn:
    """The semaphore of one user, and the number of tasks that hold it or wait for it."""

    def __init__(self, most: int) -> None:
        self.semaphore = asyncio.Semaphore(most)
        self.tasks = 0


class Threads:
    """The pool. All methods are called from the daemon's loop."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.pool = ThreadPoolExecutor(WORKERS, "gflow-question")
        self._of_user = MAX_PER_USER if is_shared else WORKERS
        self._turns: dict[int, _Turn] = {}
        self._stops: set[Callable[[], None]] = set()

    async def run(
        self, uid: int, work: Callable[..., T], *args: Any, stop: Callable[[], None] | None = None
    ) -> T:
        """Wait for a turn of this user, then run `work` in a thread; see `run_now`."""
        async with self.turn(uid):
            return await self.run_now(work, *args, stop=stop)

    async def run_now(self, work: Callable[..., T], *args: Any, stop: Callable[[], None] | None = None) -> T:
        """Run `work` in a thread; the caller holds a user's turn.

        On cancellation, work that has not begun is dropped. Work that runs is stopped with `stop`, and this
        call returns when it has ended.
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
        """Run `work` with a database reader; cancellation interrupts its query."""
        reading = _Reading(open_reader, work)
        return await self.run(uid, reading, stop=reading.stop)

    def close(self, within_s: float) -> None:
        """Drop work that has not begun, interrupt work that runs, and wait at most `within_s` for it."""
        for stop in self._stops:
            stop()
        end_pool(self.pool, within_s)

    @asynccontextmanager
    async def turn(self, uid: int) -> AsyncIterator[None]:
        """Hold one of the turns of this user."""
        uid = accounting_uid(uid)
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
    """A database query that can be stopped from another thread."""

    def __init__(self, open_reader: Callable[[], Reader], work: Callable[[Reader], T]) -> None:
        self._open = open_reader
        self._work = work
        self._reader: Reader | None = None
        self._is_stopped = False

    def __call__(self) -> T:
        reader = self._reader = self._open()
        try:
            if self._is_stopped:
                raise StoreError("the query was cancelled")
            return self._work(reader)
        finally:
            reader.close()

    def stop(self) -> None:
        self._is_stopped = True
        if self._reader is not None:
            with suppress(sqlite3.ProgrammingError):  # it is closed already
                self._reader.interrupt()


def end_pool(pool: Executor, within_s: float) -> None:
    """Shut a pool down: drop work that has not begun, and wait at most `within_s` for work that runs."""
    ending = threading.Thread(
        target=pool.shutdown, kwargs={"wait": True, "cancel_futures": True}, daemon=True
    )
    ending.start()
    ending.join(within_s)
