"""GPU samples of machine and jobs: collected in the polling thread, written by a writer thread."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from pathlib import Path
from typing import NamedTuple

from gflow.gpu.aggregation import GPU_SPAN, RunHistory, Runs, Stretch
from gflow.gpu.census import Report
from gflow.store.samples import Batch, GpuFault, Mean, OfJob, Samples

log = logging.getLogger("gflow.history")
WRITE_S = 5.0
TIDY_S = 3600.0
# Kinds of blocks that are recorded as events.
UNHEALTHY = ("Unhealthy", "Lost")


class SampleRetention(NamedTuple):
    """Retention in days, of samples and of totals of jobs."""

    samples_days: int
    totals_days: int


class History:
    """Samples since the last write, and a writer thread, so that a slow disk does not delay polling."""

    def __init__(self, path: Path, retention: SampleRetention) -> None:
        self._path = path
        self._retention = retention
        self._gpus: dict[int, Stretch] = {}
        self._runs: dict[tuple[str, int], RunHistory] = {}
        self._kinds: dict[str, str] = {}
        self._batch = Batch([], [], [])
        self._unhealthy: dict[int, str] = {}
        self._written_at = 0.0
        self._todo: queue.SimpleQueue[tuple[Batch, float] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="history", daemon=True)
        self._writer.start()

    def take(self, report: Report, holders: Runs, kinds: dict[str, str], now: float) -> None:
        """Add one report. Called from the polling thread."""
        self._kinds |= kinds  # runs that ended meanwhile are still to be written
        for index, card in report.cards.items():
            stretch = self._gpus.setdefault(index, Stretch(now))
            if now - stretch.at >= GPU_SPAN:
                self._batch.gpus.append((index, _mean(stretch, now)))
                stretch = self._gpus[index] = Stretch(now)
            stretch.add(card.sample, card.sample.memory_mib, now)
            for run in holders.get(index, ()):
                self._add(run, index, report, now)
        ended = self._end_runs({(run, index) for index, runs in holders.items() for run in runs}, now)
        self._note_events(report, now)
        if ended or self._batch.events or now - self._written_at >= WRITE_S:
            self._flush(now)
        self._kinds = dict(kinds)

    def _note_events(self, report: Report, now: float) -> None:
        """Record errors of the driver, and GPUs that have become unusable."""
        texts = [(gpu, f"Xid {number}") for gpu, number in report.xids]
        unhealthy = {gpu: str(why) for gpu, why in report.blocked.items() if why.kind in UNHEALTHY}
        texts += [(gpu, text) for gpu, text in unhealthy.items() if self._unhealthy.get(gpu) != text]
        self._unhealthy = unhealthy
        if texts:
            events = (GpuFault(gpu, int(now), text) for gpu, text in texts)
            self._batch = self._batch._replace(events=(*self._batch.events, *events))

    def peak_mib(self, run: str, index: int) -> int | None:
        """The most memory of a running run on this GPU since it or the daemon started; None: no sample."""
        history = self._runs.get((run, index))
        return None if history is None else history.total.memory_mib

    def close(self, now: float) -> None:
        """Write the remaining samples; wait up to 2 s for the writer."""
        self._flush(now)
        self._todo.put(None)
        self._writer.join(timeout=2.0)

    def _add(self, run: str, index: int, report: Report, now: float) -> None:
        history = self._runs.get((run, index))
        if history is None:
            history = self._runs[run, index] = RunHistory(now)
        used = report.used.get(run, {}).get(index, 0)
        done = history.add(report.cards[index].sample, used, now)
        if done is not None:
            self._batch.jobs.append(_of_job(run, index, _mean(done, now)))

    def _end_runs(self, living: set[tuple[str, int]], now: float) -> bool:
        """Finish the totals of runs that ended; whether there were any."""
        ended = self._runs.keys() - living
        for run, index in ended:
            history = self._runs.pop((run, index))
            self._batch.jobs.append(_of_job(run, index, _mean(history.open, now)))
            self._batch.totals.append(self._total(run, index, history))
        return bool(ended)

    def _total(self, run: str, index: int, history: RunHistory) -> OfJob:
        total = _of_job(run, index, _mean(history.total, history.total.end))
        return total._replace(kind=self._kinds.get(run, ""))

    def _flush(self, now: float) -> None:
        self._written_at = now
        for (run, index), history in self._runs.items():
            self._batch.totals.append(self._total(run, index, history))
        batch, self._batch = self._batch, Batch([], [], [])
        if any(batch):
            self._todo.put((batch, now))

    # ------------------------------------------------------------ the writer thread

    def _write(self) -> None:
        samples: Samples | None = None
        tidied_at = 0.0
        while (item := self._todo.get()) is not None:
            batch, now = item
            try:
                if samples is None:
                    samples = Samples(self._path)
                samples.write(batch)
                if now - tidied_at >= TIDY_S:
                    tidied_at = now
                    samples.delete_old(now, *self._retention)
            except (sqlite3.Error, OSError) as error:  # the disk may have space again later
                log.error("samples of GPUs are lost: %s", error)
                samples = None
        if samples is not None:
            samples.close()


def _mean(stretch: Stretch, end: float) -> Mean:
    return Mean(*stretch.row(max(1, round(end - stretch.at))))


def _of_job(run: str, index: int, mean: Mean) -> OfJob:
    job, _, attempt = run.rpartition(".")
    return OfJob(job, int(attempt), index, mean)
