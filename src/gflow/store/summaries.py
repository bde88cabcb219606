"""Cached usage summaries by day and hour, in a separate file: a query for a year adds up days.

Ended jobs never change, so the sums of past days are stored. Each summary has a fingerprint of its jobs: one
that no longer matches (retention, a restored database, a clock that was set back) is recomputed. The file
can be deleted without loss.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from gflow.core.queries.usage_report import TopJob, Usage
from gflow.store import files

log = logging.getLogger("gflow.statistics")

SCHEMA = """
DROP TABLE IF EXISTS summaries;
CREATE TABLE IF NOT EXISTS spans (
    low REAL, high REAL, is_simulated INTEGER, made_by TEXT,
    jobs INTEGER, keys REAL, ends REAL, later INTEGER, summary BLOB, PRIMARY KEY (low, high, is_simulated)
) WITHOUT ROWID;
"""


class Use(NamedTuple):
    """GPUs of one attempt of a job, and its start and end (seconds since 1970)."""

    user: str
    gpus: tuple[int, ...]
    started_at: float
    finished_at: float


class Summary(msgspec.Struct, array_like=True):
    """Sums over the jobs that ended in one span of time."""

    # User, project, sums.
    groups: list[tuple[str, str, Usage]] = []
    # The longest jobs of each user.
    top: list[TopJob] = []
    # Jobs on GPUs of the other kind, by user.
    left_out: dict[str, int] = {}
    # Earliest use of GPUs; infinite: none.
    earliest: float = float("inf")
    # Uses that began before the span.
    carried: list[Use] = []
    # Peak number of GPUs in use within the span: by user, and in total ("").
    peaks: dict[str, int] = {}


class Span(NamedTuple):
    """A span of time, [low, high). `is_whole`: it is past, so no further job ends in it."""

    low: float
    high: float
    is_whole: bool


class Fingerprint(NamedTuple):
    """Identifies the jobs that ended in the span: number of jobs, sum of keys, sum of end times.

    `later`: a checksum of the GPU uses in the span by jobs that ended after it. They count towards its peak.
    """

    jobs: int
    keys: float
    ends: float
    later: int


class Summaries:
    """The summaries file. Without a path, or if it cannot be used, nothing is cached.

    `made_by` identifies the queries; summaries made by other queries are not used.
    """

    def __init__(self, path: Path | None, made_by: str) -> None:
        self._made_by = made_by
        self._db: sqlite3.Connection | None = None
        if path is not None:
            try:
                self._db = _opened(path)
            except (sqlite3.Error, OSError) as error:
                log.warning("summaries cannot be stored in %s: %s", path, error)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def find(self, span: Span, is_simulated: bool, of: Fingerprint) -> Summary | None:
        """The summary of this span, if its fingerprint matches."""
        if self._db is None:
            return None
        try:
            row = self._db.execute(
                "SELECT summary FROM spans WHERE low = ? AND high = ? AND is_simulated = ?"
                " AND made_by = ? AND jobs = ? AND keys = ? AND ends = ? AND later = ?",
                (span.low, span.high, is_simulated, self._made_by, *of),
            ).fetchone()
            return None if row is None else msgspec.msgpack.decode(row[0], type=Summary)
        except (sqlite3.Error, msgspec.MsgspecError) as error:  # recomputed from the jobs
            log.warning("a summary cannot be read: %s", error)
            return None

    def keep(self, made: Iterable[tuple[Span, Fingerprint, Summary]], is_simulated: bool) -> None:
        """Store these summaries and delete all that overlap them: a day replaces its hours."""
        if self._db is None:
            return
        try:
            with self._db:
                for span, of, summary in made:
                    ends = (span.low, span.high, is_simulated)
                    self._db.execute(
                        "DELETE FROM spans WHERE high > ? AND low < ? AND is_simulated = ?", ends
                    )
                    content = msgspec.msgpack.encode(summary)
                    row = (*ends, self._made_by, *of, content)
                    self._db.execute("INSERT INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        except sqlite3.Error as error:  # a full disk or a lock: recomputed next time
            log.warning("summaries cannot be stored: %s", error)


def _opened(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise
        files.remove(path)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        files.make_private(path)
    db = sqlite3.connect(path, timeout=10)
    db.execute("PRAGMA synchronous = OFF")
    db.executescript(SCHEMA)
    return db
