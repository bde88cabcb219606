"""Samples of GPU and job usage, in a separate file: they cause no commits of the job database.

The interval grows with the age of a run: 1 s in the first minute, 10 s in the first twenty, then 60 s; for
GPUs it is 10 s. Totals of a job are kept longer than its samples. Samples are not needed for recovery: they
are written without fsync, and a damaged file is dropped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

SCHEMA = """
CREATE TABLE IF NOT EXISTS gpus (
    at INTEGER, gpu INTEGER, span INTEGER, busy REAL, busy_most INTEGER, memory_mib INTEGER,
    power_w REAL, heat INTEGER, clock_mhz REAL, slowed INTEGER,
    PRIMARY KEY (gpu, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
    job TEXT, attempt INTEGER, gpu INTEGER, at INTEGER, span INTEGER, busy REAL, busy_most INTEGER,
    memory_mib INTEGER, power_w REAL, heat INTEGER, clock_mhz REAL, slowed INTEGER,
    PRIMARY KEY (job, attempt, gpu, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (
    job TEXT, attempt INTEGER, gpu INTEGER, at INTEGER, span INTEGER, busy REAL, busy_most INTEGER,
    memory_mib INTEGER, power_w REAL, heat INTEGER, clock_mhz REAL, slowed INTEGER,
    kind TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, attempt, gpu)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS totals_of_kind ON totals (kind, at);
CREATE TABLE IF NOT EXISTS events (
    gpu INTEGER, at INTEGER, text TEXT,
    PRIMARY KEY (gpu, at, text)
) WITHOUT ROWID;
"""
OF_JOB = "job, attempt, gpu"
MEAN = "at, span, busy, busy_most, memory_mib, power_w, heat, clock_mhz, slowed"
DAY_S = 86400


class Mean(NamedTuple):
    """An interval on one GPU: start, length in seconds, means and maxima. None: no reading."""

    at: int
    span: int
    busy: float | None
    busy_most: int | None
    memory_mib: int
    power_w: float | None
    heat: int | None
    clock_mhz: float | None
    slowed: int


class OfJob(NamedTuple):
    """An interval of a job's run; as a total, the whole run."""

    job: str
    attempt: int
    gpu: int
    mean: Mean
    kind: str = ""


class GpuFault(NamedTuple):
    """What the driver reported about a GPU, and when: `Xid 31`, `Unhealthy: too hot: 90 °C reached`."""

    gpu: int
    at: int
    text: str


class Batch(NamedTuple):
    """The rows of one write."""

    gpus: list[tuple[int, Mean]]
    jobs: list[OfJob]
    totals: list[OfJob]
    events: tuple[GpuFault, ...] = ()


class Samples:
    """The samples file, for its only writer. Every method may block on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = self._opened()

    def _opened(self) -> sqlite3.Connection:
        try:
            return _connect(self._path)
        except sqlite3.DatabaseError as error:  # also when it is locked, or the disk full: that passes
            if error.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            return _connect(self._path)

    def write(self, batch: Batch) -> None:
        with self._db:
            self._add("gpus", "gpu", [(gpu, *mean) for gpu, mean in batch.gpus])
            self._add("jobs", OF_JOB, [(one.job, one.attempt, one.gpu, *one.mean) for one in batch.jobs])
            rows = [(one.kind, one.job, one.attempt, one.gpu, *one.mean) for one in batch.totals]
            self._add("totals", f"kind, {OF_JOB}", rows)
            self._db.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?)", batch.events)

    def _add(self, table: str, names: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            marks = ",".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT OR REPLACE INTO {table} ({names}, {MEAN}) VALUES ({marks})", rows)

    def delete_old(self, now: float, days: int, totals_days: int) -> None:
        """Delete samples older than `days`, and totals older than `totals_days`."""
        with self._db:
            for table, kept in (("gpus", days), ("jobs", days), ("events", days), ("totals", totals_days)):
                self._db.execute(f"DELETE FROM {table} WHERE at < ?", (now - kept * DAY_S,))

    def close(self) -> None:
        self._db.close()


def samples_of(path: Path, job: str) -> tuple[list[OfJob], list[OfJob]]:
    """The samples of a job's latest attempt in order, and its totals. Read-only."""
    if not path.exists():
        return [], []
    with closing(_read(path)) as db:
        attempt = db.execute("SELECT max(attempt) FROM totals WHERE job = ?", (job,)).fetchone()[0] or 0
        return _of_job(db, "jobs", job, attempt), _of_job(db, "totals", job, attempt)


def gpu_means(path: Path, since: float, span: int, gpu: int | None) -> list[tuple[int, Mean]]:
    """The GPUs since a time: means over `span` seconds, each with its GPU, in order. Read-only."""
    if not path.exists():
        return []
    question = (
        "SELECT gpu, at / ?2 * ?2, sum(span), avg(busy), max(busy_most), avg(memory_mib), avg(power_w),"
        " avg(heat), avg(clock_mhz), 0 FROM gpus WHERE at >= ?1 AND (?3 IS NULL OR gpu = ?3)"
        " GROUP BY gpu, at / ?2 ORDER BY 2, 1"
    )
    with closing(_read(path)) as db:
        return [(row[0], Mean(*row[1:])) for row in db.execute(question, (int(since), span, gpu))]


def faults_of(path: Path, gpus: Iterable[int], since: float, until: float) -> list[GpuFault]:
    """Faults of these GPUs in a span of time, in order. Read-only."""
    if not path.exists():
        return []
    question = "SELECT gpu, at, text FROM events WHERE gpu = ? AND at BETWEEN ? AND ? ORDER BY at LIMIT 100"
    with closing(_read(path)) as db:
        rows = [row for gpu in gpus for row in db.execute(question, (gpu, int(since), until))]
    return sorted((GpuFault(*row) for row in rows), key=lambda event: event.at)


def slowed_spans(path: Path, since: float, bits: int, gap_s: int) -> list[tuple[int, int, int, int]]:
    """When GPUs were slowed by these throttle reasons: GPU, start, end, reasons; by start. Read-only.

    Intervals with at most `gap_s` seconds between them are one span.
    """
    if not path.exists():
        return []
    question = (
        "SELECT gpu, at, at + span, slowed & ?2 FROM gpus WHERE at >= ?1 AND slowed & ?2 ORDER BY gpu, at"
    )
    found: list[tuple[int, int, int, int]] = []
    with closing(_read(path)) as db:
        for gpu, start, end, why in db.execute(question, (int(since), bits)):
            if found and found[-1][0] == gpu and start - found[-1][2] <= gap_s:
                _, first, _, before = found.pop()
                found.append((gpu, first, end, before | why))
            else:
                found.append((gpu, start, end, why))
    return sorted(found, key=lambda one: one[1])


def peaks_of(path: Path, kinds: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Kind -> peak memory (MiB) of its runs on a GPU, and the number of known runs."""
    if not path.exists():
        return dict.fromkeys(kinds, (0, 0))
    question = (
        "SELECT coalesce(max(memory_mib), 0), count(DISTINCT job || '.' || attempt) FROM totals"
        " WHERE kind = ? AND memory_mib > 0"
    )
    with closing(_read(path)) as db:
        return {kind: db.execute(question, (kind,)).fetchone() for kind in kinds}


def most_used(path: Path, jobs: Iterable[str]) -> dict[str, int]:
    """Job -> peak memory (MiB) on a GPU over all attempts; 0: not measured."""
    if not path.exists():
        return dict.fromkeys(jobs, 0)
    question = "SELECT coalesce(max(memory_mib), 0) FROM totals WHERE job = ?"
    with closing(_read(path)) as db:
        return {job: db.execute(question, (job,)).fetchone()[0] for job in jobs}


def usage_of_jobs(path: Path, jobs: Iterable[str]) -> dict[str, tuple[float | None, int]]:
    """Job -> mean utilisation of its GPUs in percent (None: no reading) and peak memory on a GPU (MiB).

    Of the latest attempt. A job without samples is left out.
    """
    if not path.exists():
        return {}
    question = (
        "SELECT avg(busy), max(memory_mib) FROM totals WHERE job = ?1"
        " AND attempt = (SELECT max(attempt) FROM totals WHERE job = ?1)"
    )
    with closing(_read(path)) as db:
        found = {job: db.execute(question, (job,)).fetchone() for job in jobs}
    return {job: (busy, mib) for job, (busy, mib) in found.items() if mib is not None}


def utilisation_of_runs(path: Path, since: float) -> dict[tuple[str, int], float]:
    """Job and attempt -> mean utilisation of its GPUs, 0 to 1, of runs that began since."""
    if not path.exists():
        return {}
    question = (
        "SELECT job, attempt, total(span * busy) / total(span) / 100 FROM totals"
        " WHERE at >= ? AND busy IS NOT NULL AND span > 0 GROUP BY job, attempt"
    )
    with closing(_read(path)) as db:
        return {(job, attempt): busy for job, attempt, busy in db.execute(question, (since,))}


def _read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)


def _of_job(db: sqlite3.Connection, table: str, job: str, attempt: int) -> list[OfJob]:
    rows = db.execute(
        f"SELECT {OF_JOB}, {MEAN} FROM {table} WHERE job = ? AND attempt = ? ORDER BY at, gpu", (job, attempt)
    )
    return [OfJob(row[0], row[1], row[2], Mean(*row[3:])) for row in rows]


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    db.executescript(SCHEMA)
    return db
