"""ETA forecasts for requests: one shared snapshot of the queue, and one forecast computed at a time.

A request takes its user's turn first, so that no snapshot is made for a client that disconnects while it
waits. The snapshot is copied in slices and shared until the state changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gflow.core.forecast.queue_snapshot import QueueSnapshot
from gflow.core.forecast.start_limits import limit_starts
from gflow.core.forecast.start_time import EtaQuery, Listing, eta_query_for, eta_query_for_new
from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.daemon.loop import timers
from gflow.daemon.loop.cooperative import SLICE

if TYPE_CHECKING:
    from gflow.daemon.loop.loop import Loop
    from gflow.daemon.loop.user_threads import Threads

# Seconds for which a snapshot is used at most: its forecasts age even if the queue does not change.
FRESH_S = 1.0


class _Shared:
    """A snapshot, and the forecasts computed from it."""

    def __init__(self, snapshot: QueueSnapshot, version: int) -> None:
        self.snapshot, self.version = snapshot, version
        self.starts: dict[JobKey, float] | None = None
        self.queries: dict[JobKey, EtaQuery] = {}


class Forecasts:
    """Computes and caches forecasts. All methods are called from the daemon's loop, and may be cancelled."""

    def __init__(self, loop: Loop, threads: Threads) -> None:
        self._loop, self._threads = loop, threads
        self._copying, self._computing = asyncio.Lock(), asyncio.Lock()
        self._cached: _Shared | None = None

    async def forecast_for(self, uid: int, job: Job) -> EtaQuery | None:
        """The computed forecast for a waiting job; None if it does not wait any more."""
        async with self._threads.turn(uid):
            shared = await self._current()
            query = shared.queries.get(job.key)
            if query is None:
                query = eta_query_for(self._loop.state, job, shared.snapshot)
            if query is not None:
                shared.queries[job.key] = query
                async with self._computing:
                    if not query.is_answered:
                        await self._threads.run_now(query.compute)
            return query

    async def forecast_for_new(self, uid: int, job: Job) -> EtaQuery:
        """The computed forecast for a job that is not submitted."""
        async with self._threads.turn(uid):
            shared = await self._current()
            query = eta_query_for_new(self._loop.state, job, shared.snapshot)
            async with self._computing:
                await self._threads.run_now(query.compute)
            return query

    async def starts(self, uid: int) -> dict[JobKey, float]:
        """The expected starts of all waiting jobs, in seconds of the boot clock."""
        async with self._threads.turn(uid):
            shared = await self._current()
            async with self._computing:
                if shared.starts is None:
                    starts = await self._threads.run_now(Listing(shared.snapshot).starts)
                    shared.starts = limit_starts(self._loop.state, starts, shared.snapshot.now)
            return shared.starts

    async def _current(self) -> _Shared:
        """A snapshot that is at least as new as the state at the time of this call."""
        needed = self._loop.version
        async with self._copying:
            cached = self._cached
            if cached is None or cached.version < needed:
                version = self._loop.version
                snapshot = QueueSnapshot(self._loop.state, timers.now().boot)
                while snapshot.take(SLICE):
                    await asyncio.sleep(0)
                cached = self._cached = _Shared(snapshot, version)
                asyncio.get_running_loop().call_later(FRESH_S, self._forget, cached)
            return cached

    def _forget(self, shared: _Shared) -> None:
        if self._cached is shared:
            self._cached = None
