"""GPU time and waits by day, user and project. Runs in a reader thread; costs the jobs of the period."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from heapq import nlargest
from pathlib import Path

from gflow.core.ids import JobKey, label
from gflow.core.queries.usage_report import DayUsage, IdleJob, Question, UsedGpus
from gflow.store.reader import NAME, PROJECT, Reader
from gflow.store.samples import utilisation_of_runs
from gflow.store.statistics import KIND, RAN, WIDE

# Longest period, in days.
MOST_DAYS = 366
# Runs that began so long before the period may reach into it.
LONGEST_RUN_S = 100 * 86400.0
# Unused GPU time, in seconds, from which a job is listed as idle.
LEAST_IDLE_S = 60.0

_WHICH = f"progress IS NULL AND {KIND} AND (:user IS NULL OR user = :user)"
_PERIODS = ("finished_at IS NULL", "finished_at >= :since")


def _runs_sql(period: str) -> str:
    """Attempts on GPUs: key, attempt, user, project, number of GPUs, start, end."""
    chosen = f"SELECT key, user, spec, simulated FROM jobs WHERE {period} AND {_WHICH}"
    return f"""
    SELECT j.key, a.attempt, j.user, {PROJECT}, {WIDE}, a.started_at, a.started_at + a.ran_s
    FROM ({chosen}) j CROSS JOIN attempts a ON a.key = j.key
    WHERE a.gpu_ids != '' AND j.simulated = :is_simulated
    UNION ALL
    SELECT key, attempt, user, {PROJECT}, {WIDE}, started_at, started_at + {RAN} FROM jobs
    WHERE {period} AND {_WHICH} AND gpu_ids != '' AND started_at IS NOT NULL
    """


def _starts_sql(period: str) -> str:
    """Jobs that started: user, project, first start, time of submission."""
    return f"""
    SELECT user, {PROJECT},
        coalesce((SELECT min(a.started_at) FROM attempts a WHERE a.key = jobs.key), started_at), submitted_at
    FROM jobs WHERE {period} AND {_WHICH} AND started_at IS NOT NULL
    """


def usage_by_day(reader: Reader, question: Question, samples: Path) -> list[DayUsage]:
    """The days since `question.since`, in local time, the oldest first."""
    midnights = list(_midnights(question.since, question.now))
    days = [DayUsage(start, {}, {}) for start in midnights]
    busy = utilisation_of_runs(samples, question.since - LONGEST_RUN_S)
    values = question._asdict()
    for period in _PERIODS:
        for key, attempt, user, project, gpus, start, end in reader.rows(_runs_sql(period), values):
            share = busy.get((label(JobKey(key)), attempt))
            for at, seconds in _parts(midnights, max(start, question.since), min(end, question.now)):
                days[at].used.setdefault((user, project), UsedGpus()).add(seconds * gpus, share)
        for user, project, first, submitted in reader.rows(_starts_sql(period), values):
            if question.since <= first <= question.now:
                waits = days[bisect_right(midnights, first) - 1].waits_s
                waits.setdefault((user, project), []).append(max(0.0, first - submitted))
    return days


def idle_jobs(reader: Reader, question: Question, samples: Path, most: int) -> list[IdleJob]:
    """The jobs with the most GPU time that was allocated and not used, among those below half use."""
    busy = utilisation_of_runs(samples, question.since - LONGEST_RUN_S)
    used: dict[int, UsedGpus] = {}
    for period in _PERIODS:
        for key, attempt, _, _, gpus, start, end in reader.rows(_runs_sql(period), question._asdict()):
            share = busy.get((label(JobKey(key)), attempt))
            seconds = min(end, question.now) - max(start, question.since)
            if share is not None and seconds > 0:
                used.setdefault(key, UsedGpus()).add(seconds * gpus, share)
    wasteful = [key for key, one in used.items() if one.idle_s >= LEAST_IDLE_S and one.busy_s < one.idle_s]
    worst = nlargest(most, wasteful, key=lambda key: used[key].idle_s)
    keys = ",".join(map(str, worst))
    rows = reader.rows(f"SELECT key, {NAME}, user, state FROM jobs WHERE key IN ({keys})")
    found = [IdleJob(JobKey(key), name, user, state, used[key]) for key, name, user, state in rows]
    return sorted(found, key=lambda one: -one.used.idle_s)


def _midnights(since: float, now: float) -> Iterator[float]:
    """The beginnings of all days from that of `since` to that of `now`."""
    day: date = datetime.fromtimestamp(since).date()
    while (start := datetime.combine(day, datetime.min.time()).timestamp()) <= now:
        yield start
        day += timedelta(days=1)


def _parts(midnights: list[float], start: float, end: float) -> Iterator[tuple[int, float]]:
    """Divide a span by days: the number of the day, and the seconds within it."""
    at = bisect_right(midnights, start) - 1
    while start < end:
        until = min(end, midnights[at + 1]) if at + 1 < len(midnights) else end
        yield at, until - start
        start, at = until, at + 1
