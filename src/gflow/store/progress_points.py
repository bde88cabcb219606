"""Progress that jobs reported over time, in a separate file: it causes no commits of the job database.

As for samples, nothing is recovered from it: it is written without fsync, and a damaged file is dropped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

SCHEMA = """
CREATE TABLE IF NOT EXISTS points (
    job TEXT, attempt INTEGER, at REAL, step INTEGER, loss REAL, samples_per_s REAL, metrics TEXT,
    PRIMARY KEY (job, attempt, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS points_by_time ON points (at);
"""
DAY_S = 86400


class Point(NamedTuple):
    """A report of a job at one time."""

    job: str
    attempt: int
    at: float
    step: int
    loss: float | None
    samples_per_s: float
    metrics: dict[str, float]


def write_points(path: Path, points: Sequence[Point]) -> None:
    """Add points. May block on the disk. Raises sqlite3.Error or OSError."""
    rows = [(*point[:-1], msgspec.json.encode(point.metrics).decode()) for point in points]
    with closing(_open(path)) as db, db:
        db.executemany("INSERT OR REPLACE INTO points VALUES (?,?,?,?,?,?,?)", rows)


def delete_old_points(path: Path, now: float, days: int) -> None:
    if path.exists():
        with closing(_open(path)) as db, db:
            db.execute("DELETE FROM points WHERE at < ?", (now - days * DAY_S,))


def points_of(path: Path, job: str) -> list[Point]:
    """The points of all attempts of a job, in order. Read-only."""
    if not path.exists():
        return []
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=10)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'points'").fetchone():
            return []  # the daemon is creating the file
        rows = db.execute("SELECT * FROM points WHERE job = ? ORDER BY attempt, at", (job,))
        return [_point(row) for row in rows]


def _point(row: tuple[Any, ...]) -> Point:
    point = Point(*row)
    return point._replace(metrics=msgspec.json.decode(row[-1], type=dict[str, float]))


def _open(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    db.executescript(SCHEMA)
    return db
