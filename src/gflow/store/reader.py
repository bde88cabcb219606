"""Snapshot reads concurrent with the writer, on a separate connection.

Its methods may run in another thread: SQLite works without the interpreter's lock, so a scan
of a million rows costs the daemon's loop nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gflow.core.ids import TASK_BITS
from gflow.core.model import AuditEntry, Job, Spec
from gflow.core.queries.job_filter import Filter, is_pattern
from gflow.store import files
from gflow.store.bulk import OpenSubmission, bulk_of
from gflow.store.open import UNREADABLE, unreadable
from gflow.store.rows import SELECT, job_of

_MASK = (1 << TASK_BITS) - 1
LABEL = f"(key >> {TASK_BITS}) || iif(key & {_MASK}, '_' || ((key & {_MASK}) - 1), '')"
NAME = f"coalesce(json_extract(spec, '$.name'), json_extract(spec, '$.default_name'), 'job-' || {LABEL})"
PROJECT = "coalesce(json_extract(spec, '$.project'), '')"
PARTITION = "coalesce(json_extract(spec, '$.partition'), '')"
# Specs that a reader keeps to share equal ones, which are mostly neighbours. To free 100,000 of them at
# once took 45 ms of the daemon's loop.
MOST_SPECS = 200
SHOWN = "(progress IS NULL OR json_extract(progress, '$.pending') != '')"


class Reader:
    """A snapshot of the database as of its creation."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = files.connect(files.real(path), "mode=ro", check_same_thread=False)
            self._db.create_function("fnmatchcase", 2, fnmatchcase, deterministic=True)
            self._db.execute("BEGIN")
            # The first read fixes the snapshot. Jobs of submissions that are not closed are hidden.
            known = self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'bulk'").fetchone()
            rows = self._db.execute("SELECT id, data FROM bulk WHERE id > 0").fetchall() if known else []
        except UNREADABLE as error:
            raise unreadable(error) from error
        opened = [bulk_of(*row) for row in rows]
        self._hidden = [one.span for one in opened if isinstance(one, OpenSubmission) and not one.closed]
        self._specs: dict[str, Spec] = {}

    def close(self) -> None:
        self._db.close()

    def interrupt(self) -> None:
        """Interrupt the running query, from another thread."""
        self._db.interrupt()

    def count(self, wanted: Filter) -> int:
        where, values = self._condition(wanted)
        return int(self.rows(f"SELECT count(*) FROM jobs WHERE {where}", values)[0][0])

    def page(self, wanted: Filter, limit: int, offset: int, *, newest: bool) -> list[Any]:
        """Rows of jobs ordered by key: the first or last `limit` (-1: all), oldest first."""
        where, values = self._condition(wanted)
        order = "DESC" if newest else "ASC"
        rows = self.rows(
            f"{SELECT} WHERE {where} ORDER BY key {order} LIMIT ? OFFSET ?", [*values, limit, offset]
        )
        return rows[::-1] if newest else rows

    def keys_and(
        self, what: str, wanted: Filter, after: int | None, limit: int, *, newest: bool
    ) -> list[tuple[int, Any]]:
        """The key and the SQL expression `what` of the jobs that follow the key `after`, ordered by key."""
        where, values = self._condition(wanted)
        if after is not None:
            where, values = f"key {'<' if newest else '>'} ? AND {where}", [after, *values]
        order = "DESC" if newest else "ASC"
        return self.rows(
            f"SELECT key, {what} FROM jobs WHERE {where} ORDER BY key {order} LIMIT {limit}", values
        )

    def count_active(self, wanted: Filter) -> int:
        where, values = self._condition(wanted)
        sql = f"SELECT count(*) FROM jobs WHERE finished_at IS NULL AND {where}"
        return int(self.rows(sql, values)[0][0])

    def recent(self, wanted: Filter, final: int) -> list[Any]:
        """Rows of all active jobs and of the newest `final` ended jobs, ordered by key."""
        where, values = self._condition(wanted)
        # Each half by an index: an OR would scan every row.
        newest = f"{SELECT} WHERE finished_at IS NOT NULL AND {where} ORDER BY key DESC LIMIT {int(final)}"
        sql = (
            f"{SELECT} WHERE finished_at IS NULL AND {where} UNION ALL SELECT * FROM ({newest}) ORDER BY key"
        )
        return self.rows(sql, [*values, *values])

    def last_ended(self, wanted: Filter, limit: int) -> list[Any]:
        """Rows of the jobs that ended last, the last one first. Costs those rows, not the history."""
        where, values = self._condition(wanted)
        sql = f"{SELECT} WHERE finished_at IS NOT NULL AND {where} ORDER BY finished_at DESC LIMIT ?"
        return self.rows(sql, [*values, limit])

    def failed_since(self, since: float, user: str, limit: int) -> list[Any]:
        """Rows of the newest jobs of a user that failed. Costs the jobs of all users that failed since."""
        # The states as in the index `jobs_failed`: another order would scan every row.
        sql = (
            f"{SELECT} WHERE state IN ('Failed', 'Timeout') AND finished_at >= ? AND user = ? AND {SHOWN}"
            " ORDER BY finished_at DESC LIMIT ?"
        )
        return self.rows(sql, [since, user, limit])

    def machine_entries(self, kinds: Iterable[str], limit: int) -> list[AuditEntry]:
        """The newest entries of the audit log of these kinds that are about no job, the oldest first."""
        names = ", ".join(f"'{kind}'" for kind in kinds)
        sql = (
            "SELECT at, key, uid, origin, what, detail FROM audit"
            f" WHERE key IS NULL AND what IN ({names}) ORDER BY id DESC LIMIT ?"
        )
        return [AuditEntry(*row) for row in reversed(self.rows(sql, [limit]))]

    def _condition(self, wanted: Filter) -> tuple[str, list[Any]]:
        where, values = condition(wanted)
        for span in self._hidden:
            where += " AND key NOT BETWEEN ? AND ?"
            values += span
        return where, values

    def is_hidden(self, key: int) -> bool:
        """Whether this job belongs to a submission that is not closed."""
        return any(first <= key <= last for first, last in self._hidden)

    def job(self, row: Any) -> Job:
        """Convert a row to a job."""
        if len(self._specs) >= MOST_SPECS:
            self._specs.clear()
        return job_of(row, self._specs)

    def rows(self, sql: str, values: Sequence[Any] | dict[str, Any] = ()) -> list[Any]:
        try:
            return self._db.execute(sql, values).fetchall()
        except UNREADABLE as error:
            raise unreadable(error) from error


def condition(wanted: Filter) -> tuple[str, list[Any]]:
    """The filter as a WHERE clause."""
    parts, values = [SHOWN], list[Any]()
    for column, among in (
        ("state", {state.value for state in wanted.states}),
        ("user", wanted.users),
        (PROJECT, wanted.projects),
        ("target", wanted.targets),
        (PARTITION, wanted.partitions),
    ):
        if among:
            parts.append(f"{column} IN ({', '.join('?' * len(among))})")
            values += sorted(among)
    if wanted.names:
        patterns = sorted(filter(is_pattern, wanted.names))
        among_names = f"{NAME} IN ({', '.join('?' * len(wanted.names))})"
        parts.append("(" + " OR ".join([among_names, *[f"fnmatchcase({NAME}, ?)"] * len(patterns)]) + ")")
        values += [*sorted(wanted.names), *patterns]
    if hints := _in_spec(wanted.names):
        parts.insert(0, "(" + " OR ".join(["instr(spec, ?)"] * len(hints)) + ")")
        values = [*hints, *values]
    if wanted.spans:
        parts.append("(" + " OR ".join(["key BETWEEN ? AND ?"] * len(wanted.spans)) + ")")
        values += [end for span in wanted.spans for end in span]
    if wanted.since:
        parts.append("(finished_at IS NULL OR finished_at >= ?)")
        values.append(wanted.since)
    return " AND ".join(parts), values


def _in_spec(names: frozenset[str]) -> list[str]:
    """A text that the spec of a job with one of these names must contain; empty: there is none.

    Searching for it takes a tenth of the time of parsing the JSON. It does not work for names made of the
    id, which are not in the spec, nor for patterns or for characters that JSON can escape in several ways.
    """
    if any(map(is_pattern, names)):
        return []
    plain = all(name.isascii() and name.isprintable() and not set(name) & set('"\\') for name in names)
    given = not any(name.startswith("job-") for name in names)
    return [f'"{name}"' for name in sorted(names)] if plain and given else []
