"""Housekeeping: a backup a day, and what is past its days thrown away. In a thread, off the loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

from gflow.daemon.settings import Settings
from gflow.errors import StoreError
from gflow.store.keeping import back_up_daily, is_backup_due, throw_away

log = logging.getLogger("gflow.keeper")
LOOK_S = 3600.0


async def keep(settings: Settings) -> None:
    """Once an hour, see whether the day's work is due."""
    while True:
        await asyncio.sleep(LOOK_S)
        if is_backup_due(settings.backups, time.time()):
            await asyncio.to_thread(_daily, settings)


def _daily(settings: Settings) -> None:
    try:
        back_up_daily(settings.database, settings.backups)
        throw_away(settings.database, settings.retention, time.time())
    except (StoreError, sqlite3.Error, OSError) as error:
        log.error("housekeeping failed, and is tried again in an hour: %s", error)
