"""Keeps the progress of running jobs over time, for charts; the older a run, the longer the intervals."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.store.progress_points import Point, delete_old_points, write_points

log = logging.getLogger("gflow.progress")
# Seconds between two looks at the jobs that reported, and between two writes and clean-ups.
LOOK_S = 1.0
WRITE_S = 5.0
TIDY_S = 3600.0
# After this many points the interval between two points of a run doubles.
POINTS = 300


class _Run(NamedTuple):
    """An attempt: the interval between its points, how many it has at this interval, and the last time."""

    attempt: int
    interval_s: float = LOOK_S
    points: int = 0
    at: float = 0.0


class ProgressHistory:
    """Points of jobs that are not written yet. All methods run in the loop's thread."""

    def __init__(self, path: Path, days: int, job: Callable[[JobKey], Job | None]) -> None:
        self._path, self._days, self._job = path, days, job
        self._reported: set[JobKey] = set()
        self._has_reports = asyncio.Event()
        self._runs: dict[JobKey, _Run] = {}
        self._points: list[Point] = []

    def note(self, key: JobKey) -> None:
        """Note that a job reported. The report itself is read later, when the engine has processed it."""
        self._reported.add(key)
        self._has_reports.set()

    async def run(self) -> None:
        """Take and write points. Sleeps while no job reports."""
        written_at, tidied_at = 0.0, time.monotonic()
        while True:
            if not self._points:
                await self._has_reports.wait()
            await asyncio.sleep(LOOK_S)
            self.look()
            now = time.monotonic()
            if self._points and now - written_at >= WRITE_S:
                written_at = now
                await self._write()
            if now - tidied_at >= TIDY_S:
                tidied_at = now
                self._forget_ended()
                await self._attempt(delete_old_points, self._path, time.time(), self._days)

    def look(self) -> None:
        """Take a point of each job that reported since the last look, unless its last one is recent."""
        self._has_reports.clear()
        reported, self._reported = self._reported, set()
        for key in reported:
            job = self._job(key)
            report = job.progress_report if job is not None else None
            if job is None or report is None:
                continue
            run = self._runs.get(key)
            if run is None or run.attempt != job.attempt:
                run = _Run(job.attempt)
            if report.at - run.at >= run.interval_s:
                self._runs[key] = _next(run, report.at)
                measures = (report.step, report.loss, report.samples_per_s, report.metrics)
                self._points.append(Point(job.label, job.attempt, report.at, *measures))

    def flush(self) -> None:
        """Write the remaining points, as the daemon stops."""
        self.look()
        if self._points:
            write_points(self._path, self._points)

    async def _write(self) -> None:
        points, self._points = self._points, []
        await self._attempt(write_points, self._path, points)

    async def _attempt(self, work: Callable[..., None], *args: object) -> None:
        try:
            await asyncio.to_thread(work, *args)
        except (sqlite3.Error, OSError) as error:  # the disk may have space again later
            log.error("the progress of jobs over time is not kept: %s", error)

    def _forget_ended(self) -> None:
        self._runs = {key: run for key, run in self._runs.items() if self._job(key) is not None}


def _next(run: _Run, at: float) -> _Run:
    if run.points + 1 < POINTS:
        return run._replace(points=run.points + 1, at=at)
    return run._replace(points=0, at=at, interval_s=2 * run.interval_s)
