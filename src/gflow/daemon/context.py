"""What the routes work with."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.daemon.loop import Loop
from gflow.daemon.settings import Settings
from gflow.store.port import Store
from gflow.targets.local.target import LocalTarget


class Context(NamedTuple):
    """The daemon, as its routes see it."""

    settings: Settings
    loop: Loop
    store: Store
    target: LocalTarget
    started_boot: float
    stopped: asyncio.Event

    def job(self, key: JobKey) -> Job | None:
        """A job, active or final. Memory is never ahead of the disk when a route runs."""
        return self.loop.state.jobs.get(key) or self.store.job(key)
