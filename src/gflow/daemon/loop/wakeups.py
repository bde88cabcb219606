"""Wakes tasks that wait for new audit entries, or for the end of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from gflow.core.ids import JobKey, number_of
from gflow.core.model import Job

T = TypeVar("T")
# Cached reads, see `shared`.
MAX_SHARED = 64


class Wakeups:
    """Tasks that wait for new audit entries, which they read from the store. Costs nothing if none waits."""

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


class EndWaiters:
    """Tasks that wait for the end of a job."""

    def __init__(self) -> None:
        self._waiters: dict[JobKey, list[asyncio.Future[Job]]] = {}

    async def wait(self, key: JobKey) -> Job:
        """Wait until the job is final and return it; for a task that never started, its array."""
        future: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(key, [])
        waiters.append(future)
        try:
            return await future
        finally:
            waiters.remove(future)
            if not waiters and self._waiters.get(key) is waiters:
                del self._waiters[key]

    def wake(self, jobs: Mapping[JobKey, Job]) -> None:
        """Wake the tasks that wait for those of these jobs that are final."""
        if not self._waiters:
            return
        for key, job in jobs.items():
            if job.is_final:
                self._wake(key, job)
                if job.is_array:  # a task that still has waiters never started
                    for task in [task for task in self._waiters if number_of(task) == job.number]:
                        self._wake(task, job)

    def _wake(self, key: JobKey, job: Job) -> None:
        for waiter in list(self._waiters.pop(key, ())):
            if not waiter.done():
                waiter.set_result(job)
