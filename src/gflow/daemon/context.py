"""What the routes work with."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

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
