"""Queries about the jobs of a group, or the tasks of an array, summed up by SQLite.

Their cost follows the number of these jobs. They read a snapshot, in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gflow.core.ids import TASK_BITS, JobKey, job_key
from gflow.core.model import FINAL, Job, JobState
from gflow.core.queries.group_summary import COUNTED, GroupTally
from gflow.core.queries.job_filter import merge_spans
from gflow.core.reasons import ReasonKind
from gflow.store.bulk import STEP
from gflow.store.reader import Reader
from gflow.store.rows import SELECT
from gflow.store.sqlite import WHOLE

GROUP = "json_extract(spec, '$.group')"
# Job numbers after the last known job of a group among which further ones are searched.
RANGE = 1000
# Groups in one query: SQLite limits the length of an expression.
TOGETHER = 200
_FAILED = ", ".join(f"'{state.value}'" for state in FINAL if COUNTED[state] == "failed")
_STATES = {state.value: state for state in JobState}


class Members(NamedTuple):
    """The jobs of a group, or the tasks of an array (its number, negative), between two keys."""

    group: int
    first: int
    last: int

    @property
    def condition(self) -> str:
        """The WHERE clause that selects them."""
        span = f"key BETWEEN {int(self.first)} AND {int(self.last)}"
        return f"{span} AND {WHOLE} AND {GROUP} = {int(self.group)}" if self.group > 0 else span


def tasks_of(array: JobKey) -> Members:
    """The tasks of an array that have started or ended."""
    return Members(-(array >> TASK_BITS), array + 1, array + STEP - 1)


def members_of(reader: Reader, group: int) -> Members | None:
    """The jobs of a group; None: there are none. `RANGE` numbers without one of them end the search."""
    first: int | None = None
    last = int(job_key(group)) - STEP
    while True:
        window = Members(group, last + STEP, last + RANGE * STEP)
        found = [
            reader.rows(f"SELECT key FROM jobs WHERE {window.condition} ORDER BY key {order} LIMIT 1")
            for order in ("DESC", *(["ASC"] if first is None else []))
        ]
        if not found[0]:
            return None if first is None or reader.is_hidden(first) else Members(group, first, last)
        last = found[0][0][0]
        first = found[1][0][0] if first is None else first


# ---------------------------------------------------------------- sums


def tally(reader: Reader, members: Members) -> GroupTally:
    """The sums of one group."""
    own = str(int(members.group))
    return _read_tallies(reader, own, members.condition, []).get(members.group, GroupTally())


def tally_groups(
    reader: Reader, known: Mapping[int, int], *, ended_by: float | None = None
) -> Iterator[tuple[int, GroupTally]]:
    """The sums of several groups; with `ended_by`, only of jobs that had ended at that time (wall clock).

    `known`: the key of the last known job of each group; there may be later ones.
    """
    cheap = WHOLE if ended_by is None else f"+finished_at <= {float(ended_by)!r} AND {WHOLE}"
    groups = sorted(known)
    for at in range(0, len(groups), TOGETHER):
        left = {group: known[group] for group in groups[at : at + TOGETHER]}
        while left:
            spans = merge_spans((job_key(group), last + RANGE * STEP) for group, last in left.items())
            among = f"{cheap} AND {GROUP} IN ({', '.join(map(str, map(int, left)))})"
            found = _read_tallies(reader, GROUP, f"({_any_of(spans)}) AND {among}", _ends(spans))
            yield from ((group, one) for group, one in found.items() if one.last <= left[group])
            left = {group: one.last for group, one in found.items() if one.last > left[group]}


def _any_of(spans: Sequence[Sequence[int]]) -> str:
    return " OR ".join(["key BETWEEN ? AND ?"] * len(spans))


def _ends(spans: Sequence[Sequence[int]]) -> list[int]:
    return [end for span in spans for end in span]


def _read_tallies(reader: Reader, own: str, where: str, values: list[int]) -> dict[int, GroupTally]:
    """The sums over these jobs, by the value of the SQL expression `own`."""
    is_early = f"sum(reason LIKE '{ReasonKind.STOPPED_EARLY.value}:%')"
    sums = f"count(*), min(started_at), max(finished_at), total(ran_s), max(key), {is_early}"
    found: dict[int, GroupTally] = {}
    sql = f"SELECT {own} AS own, state, {sums} FROM jobs WHERE {where} GROUP BY own, state"
    for group, state, count, started_at, finished_at, ran_s, last, early in reader.rows(sql, values):
        found.setdefault(group, GroupTally()).add(
            GroupTally(
                states={_STATES[state]: count},
                started_at=started_at,
                finished_at=finished_at,
                ran_s=ran_s if _STATES[state] is JobState.FINISHED else 0.0,
                last=last,
                stopped_early=early if _STATES[state] is JobState.CANCELLED else 0,
            )
        )
    return found


# ---------------------------------------------------------------- single jobs and parameters


def jobs_of(reader: Reader, members: Members, also: str = "1", limit: int = -1) -> list[Job]:
    """The first `limit` of these jobs (-1: all) for which the SQL condition `also` holds."""
    rows = reader.rows(f"{SELECT} WHERE {also} AND {members.condition} ORDER BY key LIMIT ?", [limit])
    return [reader.job(row) for row in rows]


def states_of_jobs(reader: Reader, members: Members, limit: int) -> list[tuple[int, JobState]]:
    """The keys and states of the first of these jobs."""
    sql = f"SELECT key, state FROM jobs WHERE {members.condition} ORDER BY key LIMIT ?"
    return [(key, _STATES[state]) for key, state in reader.rows(sql, [limit])]


def running_jobs(reader: Reader, members: Members) -> list[Job]:
    return jobs_of(reader, members, "state = 'Running'")


def last_waiting(reader: Reader, members: Members) -> Job | None:
    """The last of these jobs that waits in the queue."""
    where = f"state = '{JobState.QUEUED.value}' AND {members.condition}"
    rows = reader.rows(f"{SELECT} WHERE {where} ORDER BY key DESC LIMIT 1")
    return reader.job(rows[0]) if rows else None


def failed_jobs(reader: Reader, members: Members, limit: int) -> list[Job]:
    """The first of these jobs that failed or reached their time limit."""
    return jobs_of(reader, members, f"state IN ({_FAILED})", limit)


def extreme_jobs(reader: Reader, members: Members, metric: str) -> list[Job]:
    """Of these jobs that do not run: the one with the lowest value of a metric, and the one with the highest.

    Empty if none reported it. The database does not have the latest report of a running job.
    """
    path = "$.loss" if metric == "loss" else f'$.metrics."{metric}"'
    which = f"headway IS NOT NULL AND state != 'Running' AND {members.condition}"
    values = f"SELECT key, json_extract(headway, ?) AS value FROM jobs WHERE {which}"
    # SQLite takes `key` from the row that has the minimum or maximum.
    sql = f"SELECT min(value), key FROM ({values}) UNION ALL SELECT max(value), key FROM ({values})"
    keys = [key for value, key in reader.rows(sql, [path, path]) if value is not None]
    return [jobs_of(reader, members, f"key = {int(key)}")[0] for key in keys]


def reported_metrics(reader: Reader, members: Members) -> set[str]:
    """The names of the metrics in the last reports of these jobs, and `loss`."""
    where = f"headway IS NOT NULL AND {members.condition}".replace("key ", "jobs.key ")
    metrics = f"SELECT DISTINCT one.key FROM jobs, json_each(headway, '$.metrics') AS one WHERE {where}"
    loss = f"SELECT 'loss' FROM jobs WHERE json_extract(headway, '$.loss') IS NOT NULL AND {where}"
    return {name for (name,) in reader.rows(f"{metrics} UNION {loss}")}


def varied_parameters(reader: Reader, members: Members) -> dict[str, list[str]]:
    """The parameters that differ between these jobs, each with its values in the order of the jobs."""
    name, value = "json_extract(one.value, '$[0]')", "json_extract(one.value, '$[1]')"
    where = members.condition.replace("key ", "jobs.key ")
    sql = (
        f"SELECT {name} AS name, {value} AS value FROM jobs, json_each(spec, '$.parameters') AS one "
        f"WHERE {where} GROUP BY name, value ORDER BY min(one.key), min(jobs.key)"
    )
    found: dict[str, list[Any]] = {}
    for name, value in reader.rows(sql):
        found.setdefault(name, []).append(value)
    return {name: values for name, values in found.items() if len(values) > 1}
