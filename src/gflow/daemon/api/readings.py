"""Readings of GPUs and progress of jobs for the event stream. They are in no audit log, and not replayed."""

from __future__ import annotations

import time

from gflow.core.model import Job
from gflow.daemon.api.visibility import Viewer
from gflow.daemon.context import Context
from gflow.gpu.census import Report
from gflow.wire.answers.event_stream import GpuReading, JobReading, Readings
from gflow.wire.answers.jobs import progress_view
from gflow.wire.encoding import encode, key_label

# Seconds between two readings of one stream.
READINGS_S = 2.0


class LatestReadings:
    """What one client was sent last."""

    def __init__(self, context: Context, viewer: Viewer) -> None:
        self._context, self._viewer = context, viewer
        self._sent = b""
        self._next_at = 0.0

    def take(self) -> bytes:
        """The readings as a frame, if it is time for them and they changed; else empty."""
        now = time.monotonic()
        if now < self._next_at:
            return b""
        self._next_at = now + READINGS_S
        # Equal for all clients with the same view, so that many open pages cost as much as one.
        key = ("readings", int(now / READINGS_S), self._viewer.cache_key)
        text = self._context.loop.wakeups.shared(key, self._frame)
        if text == self._sent:
            return b""
        self._sent = text
        return text

    def _frame(self) -> bytes:
        report = self._context.watch.latest if self._context.watch else Report()
        running = self._context.loop.state.running.values()
        data = Readings(
            event="readings",
            gpus=[
                GpuReading(
                    index=index,
                    utilisation=card.sample.utilisation,
                    used_mib=card.sample.memory_mib,
                    temperature=card.sample.temperature,
                    power_w=card.sample.power_w,
                )
                for index, card in sorted(report.cards.items())
            ],
            jobs=[reading for job in running if (reading := self._job_reading(job)) is not None],
        )
        return b"event: readings\ndata: " + encode(data) + b"\n\n"

    def _job_reading(self, job: Job) -> JobReading | None:
        if job.progress_report is None or not self._viewer.sees_job(job):
            return None
        shown = self._viewer.redact_job(job).progress_report
        return None if shown is None else JobReading(key_label(job.key), progress_view(shown))
