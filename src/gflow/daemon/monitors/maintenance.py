"""Maintenance in a thread: daily backups, retention, usage statistics; and ETA samples for calibration."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable

from gflow.core.events import Event, Foresee
from gflow.core.ids import JobKey, job_key
from gflow.core.model import Moment
from gflow.core.queries.usage_report import Question as UsageQuestion
from gflow.core.state.eta_calibration import EtaSample
from gflow.daemon.auth.rate_limits import RateLimits
from gflow.daemon.loop import timers
from gflow.daemon.loop.forecasts import Forecasts
from gflow.daemon.loop.loop import Loop
from gflow.daemon.settings import Settings
from gflow.errors import StoreError
from gflow.store.backup import (
    DAY_S,
    apply_retention,
    back_up_daily,
    delete_old_logs,
    delete_unrun_texts,
    is_backup_due,
    kept_bytes,
)
from gflow.store.reader import Reader
from gflow.store.statistics import statistics

log = logging.getLogger("gflow.maintenance")
LOOK_S = 3600.0
# Soon after the start: else a daemon that is restarted every hour would never run it.
FIRST_LOOK_S = 60.0
ETA_SAMPLE_S = 60.0
# The uid under which the daemon itself takes turns with users.
OWN_TURN = -1


async def run_maintenance(settings: Settings, rate_limits: RateLimits) -> None:
    """Check once an hour which maintenance is due."""
    maintenance = Maintenance(settings)
    await _count_kept_bytes(settings, rate_limits)
    await asyncio.sleep(FIRST_LOOK_S)
    while True:
        await asyncio.to_thread(maintenance.look, time.time())
        await _count_kept_bytes(settings, rate_limits)
        await asyncio.sleep(LOOK_S)


async def _count_kept_bytes(settings: Settings, rate_limits: RateLimits) -> None:
    """Count the stored bytes of each user's environments and scripts; limited only in system mode."""
    if not settings.is_system:
        return
    before = rate_limits.stored_since_count()
    try:
        kept = await asyncio.to_thread(kept_bytes, settings.database, settings.retention, time.time())
    except (sqlite3.Error, OSError) as error:
        log.error("stored environments and scripts could not be counted, next try in an hour: %s", error)
        return
    rate_limits.set_stored(kept, before)


async def record_eta_samples(loop: Loop, forecasts: Forecasts) -> None:
    """Once a minute, record the forecast for the newest waiting job, to calibrate later forecasts."""
    while True:
        await asyncio.sleep(ETA_SAMPLE_S)
        state, key, sample = loop.state, job_key(loop.state.jobs.next_number - 1), None
        job = state.jobs.get(key)
        if job is not None and job in state.ready and state.eta_calibration.wants(key):
            query = await forecasts.forecast_for(OWN_TURN, job)
            sample = None if query is None else query.case()
        if sample is not None or state.eta_calibration.record.open:
            loop.post(_sample_event(key, sample))


def _sample_event(key: JobKey, sample: EtaSample | None) -> Callable[[Moment], Event]:
    return lambda at: Foresee(at=at, key=key, case=sample)


class Maintenance:
    """Runs maintenance that is due. A failure is logged, and tried again at the next check."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._retention_at = 0.0
        self._looked_at = 0.0

    def look(self, now: float) -> None:
        """Run the maintenance that is due at `now`."""
        settings = self._settings
        try:
            if is_backup_due(settings.backups, now):
                back_up_daily(settings.database, settings.backups)
            # Independent of backups: a user may make one, and that must not delay retention.
            if now - self._retention_at >= DAY_S:
                apply_retention(settings.database, settings.retention, now)
                delete_old_logs(settings.logs, now - settings.retention.logs_days * DAY_S)
                self._retention_at = now
            if settings.is_system:  # scripts and environments of users are on root's disk
                delete_unrun_texts(settings.database, settings.retention, now, self._looked_at)
            self._looked_at = now
            self._update_statistics(now)
        except (StoreError, sqlite3.Error, OSError) as error:
            log.error("maintenance failed, next try in an hour: %s", error)

    def _update_statistics(self, now: float) -> None:
        """Compute the statistics of past hours and days, so that requests need not wait for it."""
        settings = self._settings
        reader = Reader(settings.database)
        try:
            query = UsageQuestion(now=now, boot=timers.now().boot, is_simulated=bool(settings.gpus))
            statistics(reader, query, settings.summaries)
        finally:
            reader.close()
