"""What people used, counted by the database: the loop waits for none of it.

A job may have run more than once: its last attempt is in its own record, the earlier ones are in `attempts`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gflow.core.ids import label
from gflow.core.statistics import Prediction, Question, Statistics, TopJob, Usage
from gflow.core.tasks import parse_tasks
from gflow.store.reading import NAME, PROJECT, Reader
from gflow.store.samples import most_used

TOP = 5

# Jobs that count: not the records of arrays, whose tasks have records of their own.
_COUNTED = """
    progress IS NULL AND (:user IS NULL OR user = :user)
    AND (finished_at IS NULL OR finished_at >= :since)
"""
_KIND = "(gpu_ids = '' OR simulated = :is_simulated)"
_WIDE = "(length(gpu_ids) - length(replace(gpu_ids, ',', '')) + (gpu_ids != ''))"
# Attempts before the one in the job's record.
_EARLIER = f"""
earlier (key, started_at, finished_at, gpu_ids) AS (
    SELECT a.key, a.started_at, a.finished_at, a.gpu_ids
    FROM attempts a JOIN (SELECT key, simulated FROM jobs WHERE {_COUNTED} AND {_KIND}) j ON j.key = a.key
    WHERE a.gpu_ids = '' OR j.simulated = :is_simulated
)
"""
_RAN = "max(0, coalesce(finished_at, :now) - started_at)"
_SPENT = "max(0, coalesce(finished_at, :now) - max(started_at, :since))"
# One row for each job: how long it ran in all its attempts.
_JOBS = f"""
WITH {_EARLIER},
before (key, first_at, run_s, gpu_s) AS (
    SELECT key, min(started_at), sum({_RAN}), sum({_SPENT} * {_WIDE}) FROM earlier GROUP BY key
),
counted AS (
    SELECT j.key, user, state, spec,
        coalesce(first_at, started_at) - submitted_at AS waited_s,
        coalesce(b.run_s, 0) + coalesce({_RAN}, 0) AS run_s,
        coalesce(b.gpu_s, 0) + coalesce({_SPENT} * {_WIDE}, 0) AS gpu_s,
        iif(gpu_ids != '', {_WIDE}, coalesce(json_extract(spec, '$.gpus'), 0)) AS gpus
    FROM jobs j LEFT JOIN before b ON b.key = j.key WHERE {_COUNTED} AND {_KIND}
)
"""
_GROUPS = f"""{_JOBS}
SELECT user, {PROJECT},
    count(*), sum(state = 'Finished'), sum(state = 'Failed'), sum(state = 'Cancelled'),
    sum(state = 'Timeout'), sum(state = 'Running'), sum(state IN ('Queued', 'Hold')),
    count(waited_s), total(max(0, waited_s)),
    sum(state NOT IN ('Queued', 'Hold', 'Running') AND waited_s IS NOT NULL),
    total(iif(state IN ('Queued', 'Hold', 'Running'), 0, run_s)),
    total(gpu_s), sum(gpus > 0), sum(gpus)
FROM counted GROUP BY 1, 2
"""
_TOP = f"""{_JOBS}
SELECT key, {NAME}, user, state, run_s, gpus FROM counted
WHERE run_s > 0 ORDER BY run_s DESC, key LIMIT {TOP}
"""
# A GPU is in use from the first of those who share it to the last. At one moment ends come before beginnings.
_PEAK = f"""
WITH {_EARLIER},
spans AS (
    SELECT started_at, finished_at, gpu_ids FROM earlier UNION ALL
    SELECT started_at, finished_at, gpu_ids FROM jobs WHERE {_COUNTED} AND {_KIND}
),
uses (gpu, started_at, finished_at) AS (
    SELECT g.value, max(started_at, :since), coalesce(finished_at, :now)
    FROM spans, json_each('[' || gpu_ids || ']') g WHERE gpu_ids != '' AND started_at IS NOT NULL
),
edges (gpu, at, change) AS (
    SELECT gpu, started_at, 1 FROM uses WHERE finished_at > started_at UNION ALL
    SELECT gpu, finished_at, -1 FROM uses WHERE finished_at > started_at
),
users (at, change, users) AS (
    SELECT at, change, sum(change) OVER (PARTITION BY gpu ORDER BY at, change ROWS UNBOUNDED PRECEDING)
    FROM edges
),
busy (count) AS (
    SELECT sum(change) OVER (ORDER BY at, change ROWS UNBOUNDED PRECEDING) FROM users
    WHERE (change = 1 AND users = 1) OR (change = -1 AND users = 0)
)
SELECT coalesce(max(count), 0) FROM busy
"""
_LEFT_OUT = f"SELECT count(*) FROM jobs WHERE {_COUNTED} AND NOT {_KIND}"
_WAITING_TASKS = f"""
SELECT user, {PROJECT}, finished_at IS NULL, json_extract(progress, '$.pending'),
    coalesce(json_extract(spec, '$.gpus'), 0) FROM jobs
WHERE progress IS NOT NULL AND json_extract(progress, '$.pending') != ''
    AND {_COUNTED.replace("progress IS NULL", "1")}
"""


def statistics(reader: Reader, question: Question) -> Statistics:
    """All of it. Seconds for a million jobs, so it runs in a thread."""
    values = question._asdict()
    by_user: dict[str, Usage] = {}
    by_project: dict[str, Usage] = {}
    for user, project, usage in _groups(reader, values):
        by_user[user] = by_user.get(user, Usage()) + usage
        by_project[project] = by_project.get(project, Usage()) + usage
    return Statistics(
        total=sum(by_user.values(), Usage()),
        by_user=dict(sorted(by_user.items(), key=_by_use)),
        by_project=dict(sorted(by_project.items(), key=_by_use)),
        top=[TopJob(*row) for row in reader.rows(_TOP, values)],
        peak_gpus=reader.rows(_PEAK, values)[0][0],
        left_out=reader.rows(_LEFT_OUT, values)[0][0],
    )


_PREDICTED = f"""
SELECT key, {NAME}, user, state, json_extract(spec, '$.predicted_mib') FROM jobs
WHERE {_COUNTED} AND {_KIND} AND json_extract(spec, '$.predicted_mib') > 0 ORDER BY key
"""


def predictions(reader: Reader, question: Question, samples: Path) -> list[Prediction]:
    """Jobs whose memory was predicted, with what was measured of each."""
    rows = reader.rows(_PREDICTED, question._asdict())
    measured = most_used(samples, [label(key) for key, *_ in rows])
    return [
        Prediction(key, name, user, state, mib, measured[label(key)]) for key, name, user, state, mib in rows
    ]


def _groups(reader: Reader, values: dict[str, Any]) -> list[tuple[str, str, Usage]]:
    groups = [(user, project, Usage(*sums)) for user, project, *sums in reader.rows(_GROUPS, values)]
    # Tasks that have not started are a range in their array's record.
    for user, project, is_active, pending, gpus in reader.rows(_WAITING_TASKS, values):
        count = len(parse_tasks(pending))
        usage = Usage(total=count, gpu_jobs=count * (gpus > 0), gpus=count * gpus)
        usage.queued, usage.cancelled = (count, 0) if is_active else (0, count)
        groups.append((user, project, usage))
    return groups


def _by_use(item: tuple[str, Usage]) -> tuple[float, int, str]:
    name, usage = item
    return -usage.gpu_s, -usage.total, name
