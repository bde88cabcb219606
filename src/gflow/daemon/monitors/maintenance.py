"""Housekeeping: a backup a day, what is past its days thrown away, the past summed up, forecasts to learn
from. In a thread."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable

from gflow.core.events import Event, Foresee
from gflow.core.forecast.calibration import EtaSample
from gflow.core.ids import JobKey, job_key
from gflow.core.model import Moment
from gflow.core.queries.usage_report import Question as UsageQuestion
from gflow.daemon.api.rate_limits import Fairness
from gflow.daemon.loop import timers
from gflow.daemon.loop.forecasts import Forecasts
from gflow.daemon.loop.loop import Loop
from gflow.daemon.settings import Settings
from gflow.errors import StoreError
from gflow.store.backup import (
    DAY_S,
    back_up_daily,
    is_backup_due,
    kept_bytes,
    throw_away,
    throw_away_logs,
    throw_away_unrun_texts,
)
from gflow.store.reader import Reader
from gflow.store.statistics import statistics

log = logging.getLogger("gflow.keeper")
LOOK_S = 3600.0
# Soon after the start, or a daemon that is restarted every hour would never get to it.
FIRST_LOOK_S = 60.0
FORESEEN_EVERY_S = 60.0
# The daemon's own turn, where users have theirs.
OWN_TURN = -1


async def keep(settings: Settings, fairness: Fairness) -> None:
    """Once an hour, see whether the day's work is due."""
    keeper = Maintenance(settings)
    await _count(settings, fairness)
    await asyncio.sleep(FIRST_LOOK_S)
    while True:
        await asyncio.to_thread(keeper.look, time.time())
        await _count(settings, fairness)
        await asyncio.sleep(LOOK_S)


async def _count(settings: Settings, fairness: Fairness) -> None:
    """Count what each person's environments and scripts take; only a machine's daemon bounds that."""
    if not settings.is_system:
        return
    before = fairness.brought()
    try:
        kept = await asyncio.to_thread(kept_bytes, settings.database, settings.retention, time.time())
    except (sqlite3.Error, OSError) as error:
        log.error("what people keep could not be counted, and is counted again in an hour: %s", error)
        return
    fairness.counted(kept, before)


async def foresee(loop: Loop, forecasts: Forecasts) -> None:
    """Once a minute, note what would be told to the latest who waits: `gjob why` learns from what comes."""
    while True:
        await asyncio.sleep(FORESEEN_EVERY_S)
        state, key, case = loop.state, job_key(loop.state.next_number - 1), None
        job = state.jobs.get(key)
        if job is not None and job in state.ready and state.foretold.wants(key):
            question = await forecasts.about(OWN_TURN, job)
            case = None if question is None else question.case()
        if case is not None or state.foretold.record.open:
            loop.post(_noted(key, case))


def _noted(key: JobKey, case: EtaSample | None) -> Callable[[Moment], Event]:
    return lambda at: Foresee(at=at, key=key, case=case)


class Maintenance:
    """Does what is due. What fails is told, and tried again at the next look."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thrown_away_at = 0.0
        self._looked_at = 0.0

    def look(self, now: float) -> None:
        settings = self._settings
        try:
            if is_backup_due(settings.backups, now):
                back_up_daily(settings.database, settings.backups)
            # On a clock of its own: people make backups too, and those must not keep the old from going.
            if now - self._thrown_away_at >= DAY_S:
                throw_away(settings.database, settings.retention, now)
                throw_away_logs(settings.logs, now - settings.retention.logs_days * DAY_S)
                self._thrown_away_at = now
            if settings.is_system:  # other people's texts are on root's disk
                throw_away_unrun_texts(settings.database, settings.retention, now, self._looked_at)
            self._looked_at = now
            self._count(now)
        except (StoreError, sqlite3.Error, OSError) as error:
            log.error("housekeeping failed, and is tried again in an hour: %s", error)

    def _count(self, now: float) -> None:
        """Count the hours and days that have passed, so that nobody waits for it who asks."""
        settings = self._settings
        reader = Reader(settings.database)
        try:
            question = UsageQuestion(now=now, boot=timers.now().boot, is_simulated=bool(settings.gpus))
            statistics(reader, question, settings.summaries)
        finally:
            reader.close()
