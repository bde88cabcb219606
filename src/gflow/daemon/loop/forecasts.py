"""Forecasts for whoever asks: one snapshot of the queue for all, and one forecast computed at a time.

A request takes its user's turn first, so nothing is copied for somebody who hangs up while waiting. The
snapshot is copied in slices and shared until the state changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gflow.core.forecast.queue_snapshot import QueueSnapshot
from gflow.core.forecast.start_time import Listing, Question, question_about
from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.daemon.loop import timers
from gflow.daemon.loop.cooperative import SLICE

if TYPE_CHECKING:
    from gflow.daemon.loop.loop import Loop
    from gflow.daemon.loop.user_threads import Threads

# A snapshot is used for so long at most: its queue stands still, but time does not.
FRESH_S = 1.0


class _Shared:
    """A snapshot, and what has been computed from it."""

    def __init__(self, snapshot: QueueSnapshot, version: int) -> None:
        self.snapshot, self.version = snapshot, version
        self.starts: dict[JobKey, float] | None = None
        self.questions: dict[JobKey, Question] = {}


class Forecasts:
    """All methods are called from the daemon's loop. Cancelled, they begin nothing more."""

    def __init__(self, loop: Loop, threads: Threads) -> None:
        self._loop, self._threads = loop, threads
        self._copying, self._thinking = asyncio.Lock(), asyncio.Lock()
        self._kept: _Shared | None = None

    async def about(self, uid: int, job: Job) -> Question | None:
        """When a job that waits will start, thought about already; None: it does not wait any more."""
        async with self._threads.turn(uid):
            shared = await self._current()
            question = shared.questions.get(job.key)
            if question is None:
                question = question_about(self._loop.state, job, shared.snapshot)
            if question is not None:
                shared.questions[job.key] = question
                async with self._thinking:
                    if not question.is_answered:
                        await self._threads.run_now(question.think)
            return question

    async def starts(self, uid: int) -> dict[JobKey, float]:
        """When those who wait will probably start, on the boot clock."""
        async with self._threads.turn(uid):
            shared = await self._current()
            async with self._thinking:
                if shared.starts is None:
                    shared.starts = await self._threads.run_now(Listing(shared.snapshot).starts)
            return shared.starts

    async def _current(self) -> _Shared:
        """A snapshot that was begun when the state was at least as new as it is now."""
        needed = self._loop.version
        async with self._copying:
            kept = self._kept
            if kept is None or kept.version < needed:
                version = self._loop.version
                snapshot = QueueSnapshot(self._loop.state, timers.now().boot)
                while snapshot.take(SLICE):
                    await asyncio.sleep(0)
                kept = self._kept = _Shared(snapshot, version)
                asyncio.get_running_loop().call_later(FRESH_S, self._forget, kept)
            return kept

    def _forget(self, shared: _Shared) -> None:
        if self._kept is shared:
            self._kept = None
