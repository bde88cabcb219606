"""Usage statistics, computed by the database outside the loop.

A job may have run more than once: its last attempt is in its own record, the earlier ones are in `attempts`.
Ended jobs are counted by the day and hour of their end. Counts of past days and hours are cached
(`store/summaries`), so the cost of a query depends on the time since then, not on the whole history.
"""

from __future__ import annotations

import hashlib
import heapq
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gflow.core.ids import label
from gflow.core.queries.usage_report import Prediction, Question, Statistics, TopJob, Usage
from gflow.core.task_set import parse_tasks
from gflow.job_states import ACTIVE_NAMES, JobState
from gflow.store.reader import NAME, PROJECT, Reader
from gflow.store.samples import most_used
from gflow.store.summaries import Fingerprint, Span, Summaries, Summary, Use

TOP = 5
HOUR_S, DAY_S = 3600.0, 86400.0
EVER = float("inf")


KIND = "(gpu_ids = '' OR simulated = :is_simulated)"
WIDE = "(length(gpu_ids) - length(replace(gpu_ids, ',', '')) + (gpu_ids != ''))"
# GPUs of a job on a cluster, which has no indices here: those of the shape that won its race, else those of
# each node, times the nodes.
WIDE_THERE = """coalesce(json_extract(abroad, '$.gpus'),
    json_extract(spec, '$.gpus') * coalesce(json_extract(spec, '$.nodes'), 1), 0)"""
# Run time of an attempt, and its part since the start of the query.
# On the boot clock; NULL: it never ran. An attempt that began before is limited by the wall clock.
RAN = "coalesce(ran_s, max(0, :boot - started_boot))"
_SPENT = f"""iif(started_at >= :since, {RAN},
    min({RAN}, max(0, coalesce(finished_at, :now) - :since)))"""


THERE = f"iif(target = 'local', 0, {WIDE_THERE})"


def _sql_list(states: Iterable[str]) -> str:
    return "(" + ", ".join(f"'{state}'" for state in states) + ")"


_ACTIVE_STATES = _sql_list(ACTIVE_NAMES)


def _sum_of(figure: str) -> str:
    """SQL that counts the jobs in the states of this figure of `Usage`."""
    first, *others = (state.value for state in JobState if state.row.figure == figure)
    return f"sum(state IN {_sql_list([first, *others])})" if others else f"sum(state = '{first}')"


class _Counting(NamedTuple):
    """The SQL queries about some jobs. Records of arrays do not count: their tasks have their own."""

    groups: str
    top: str
    uses: str
    left_out: str
    waiting_tasks: str


def _counting(which: str) -> _Counting:
    """The SQL queries about the jobs that match `which`."""
    # Attempts before the one in the job's record. Jobs first: attempts have no index of times.
    earlier = f"""
    earlier (key, user, started_at, finished_at, gpu_ids, ran_s, started_boot, there) AS (
        SELECT a.key, j.user, a.started_at, a.finished_at, a.gpu_ids, a.ran_s, NULL, j.there
        FROM (SELECT key, user, simulated, {THERE} AS there FROM jobs
            WHERE {which} AND progress IS NULL AND {KIND}) j
        CROSS JOIN attempts a ON a.key = j.key
        WHERE a.gpu_ids = '' OR j.simulated = :is_simulated
    )
    """
    # One row for each job, with its run time over all attempts.
    jobs = f"""
    WITH {earlier},
    before (key, first_at, run_s, gpu_s) AS (
        SELECT key, min(started_at), sum({RAN}), sum({_SPENT} * iif(gpu_ids != '', {WIDE}, there))
        FROM earlier GROUP BY key
    ),
    counted AS (
        SELECT j.key, user, state, spec,
            coalesce(first_at, started_at) - submitted_at AS waited_s,
            coalesce(b.run_s, 0) + coalesce({RAN}, 0) AS run_s,
            coalesce(b.gpu_s, 0) + coalesce({_SPENT} * iif(gpu_ids != '', {WIDE}, {THERE}), 0) AS gpu_s,
            iif(gpu_ids != '', {WIDE},
                iif(target = 'local', coalesce(json_extract(spec, '$.gpus'), 0), {WIDE_THERE})) AS gpus
        FROM jobs j LEFT JOIN before b ON b.key = j.key WHERE {which} AND progress IS NULL AND {KIND}
    )
    """
    return _Counting(
        groups=f"""{jobs}
        SELECT user, {PROJECT},
            count(*), {_sum_of("completed")}, {_sum_of("failed")}, {_sum_of("cancelled")},
            {_sum_of("timeout")}, {_sum_of("running")}, {_sum_of("queued")},
            count(waited_s), total(max(0, waited_s)),
            sum(state NOT IN {_ACTIVE_STATES} AND waited_s IS NOT NULL),
            total(iif(state IN {_ACTIVE_STATES}, 0, run_s)),
            total(gpu_s), sum(gpus > 0), sum(gpus)
        FROM counted GROUP BY 1, 2
        """,
        top=f"""{jobs},
        placed AS (
            SELECT key, run_s, gpus, row_number() OVER (PARTITION BY user ORDER BY run_s DESC, key) AS place
            FROM counted WHERE run_s > 0
        )
        SELECT key, {NAME}, user, state, run_s, gpus FROM placed JOIN jobs USING (key) WHERE place <= {TOP}
        """,
        uses=f"""WITH {earlier}
        SELECT user, gpu_ids, started_at, started_at + {RAN} FROM earlier WHERE gpu_ids != '' UNION ALL
        SELECT user, gpu_ids, started_at, started_at + {RAN} FROM jobs
        WHERE {which} AND progress IS NULL AND {KIND} AND gpu_ids != '' AND started_at IS NOT NULL
        """,
        left_out=f"""
        SELECT user, count(*) FROM jobs WHERE {which} AND progress IS NULL AND NOT {KIND} GROUP BY user
        """,
        waiting_tasks=f"""
        SELECT user, {PROJECT}, finished_at IS NULL, json_extract(progress, '$.pending'),
            coalesce(json_extract(spec, '$.gpus'), 0) FROM jobs
        WHERE {which} AND progress IS NOT NULL AND json_extract(progress, '$.pending') != ''
        """,
    )


_ACTIVE = _counting("finished_at IS NULL")
_OVER = _counting("finished_at >= :low AND finished_at < :high")
_FINGERPRINT = """
SELECT count(*), total(key), total(finished_at) FROM jobs WHERE finished_at >= :low AND finished_at < :high
"""
_NEXT_END = "SELECT min(finished_at) FROM jobs WHERE finished_at >= ?"
# Summaries made by other queries, or of another format, are recomputed.
_SHAPE = ",".join((*Summary.__struct_fields__, *Usage.__struct_fields__, *TopJob._fields))
_MADE_BY = hashlib.blake2b("".join((*_OVER, _SHAPE)).encode(), digest_size=8).hexdigest()


def statistics(reader: Reader, question: Question, kept: Path | None = None) -> Statistics:
    """The usage report. `kept`: the file of summaries. Runs in a thread: it may take seconds."""
    summaries = Summaries(kept, _MADE_BY)
    try:
        return _folded(_summed(reader, question, summaries), question)
    finally:
        summaries.close()


# ---------------------------------------------------------------- by spans of time


def _summed(reader: Reader, question: Question, summaries: Summaries) -> list[Summary]:
    """A summary of the active jobs, and one of each span in which jobs ended."""
    active, going = _count(reader, _ACTIVE, question)
    found, made = [active], []
    # Newest first: GPUs used in a span may belong to jobs that ended later.
    for span in reversed(_spans(reader, question)):
        if not span.is_whole:
            summary = _of_span(reader, question, span, going)
        else:
            jobs, keys, ends = reader.rows(_FINGERPRINT, span._asdict())[0]
            of = Fingerprint(jobs, keys, ends, _checksum(going, span))
            known = summaries.find(span, question.is_simulated, of)
            summary = known or _of_span(reader, question._replace(since=0.0), span, going)
            if known is None:
                made.append((span, of, summary))
        going = [use for use in going + summary.carried if use.started_at < span.low]
        if span.is_whole and summary.earliest < question.since:  # count only the part of such uses since then
            peaks = summary.peaks
            summary, _ = _count(reader, _OVER, question, span)
            summary.peaks = peaks
        found.append(summary)
    summaries.keep(made, question.is_simulated)
    return found


def _spans(reader: Reader, question: Question) -> list[Span]:
    """Past days, hours of today in which jobs ended, and the current hour; without gaps.

    The first begins at the start of the query.
    """
    hour, today = (question.now // unit * unit for unit in (HOUR_S, DAY_S))

    def bounds_of(at: float) -> tuple[float, float]:
        unit = DAY_S if at < today else HOUR_S
        return at // unit * unit, at // unit * unit + unit

    spans, low = list[Span](), question.since
    if low < hour and low != bounds_of(low)[0]:
        spans.append(Span(low, bounds_of(low)[1], is_whole=False))
        low = spans[0].high
    while (at := reader.rows(_NEXT_END, [low])[0][0]) is not None and at < hour:
        spans.append(Span(low, bounds_of(at)[1], is_whole=True))
        low = spans[-1].high
    return [*spans, Span(low, EVER, is_whole=False)]


def _checksum(uses: list[Use], span: Span) -> int:
    """Checksum of these GPU uses within the span. The end of a running job does not change it."""
    inside = sorted((*use[:3], min(use.finished_at, span.high)) for use in uses if use.started_at < span.high)
    return zlib.crc32(repr(inside).encode())


def _of_span(reader: Reader, question: Question, span: Span, going: list[Use]) -> Summary:
    """The summary of a span. `going`: uses of GPUs by jobs that ended later or still run."""
    summary, uses = _count(reader, _OVER, question, span)
    summary.carried = [use for use in uses if use.started_at < span.low]
    summary.peaks = _peaks([*going, *uses], span)
    return summary


def _count(
    reader: Reader, counting: _Counting, question: Question, span: Span | None = None
) -> tuple[Summary, list[Use]]:
    """The sums over these jobs, and their uses of GPUs."""
    values = question._asdict() | (span._asdict() if span else {})
    uses = [
        Use(user, tuple(map(int, gpus.split(","))), start, end)
        for user, gpus, start, end in reader.rows(counting.uses, values)
    ]
    summary = Summary(
        groups=_groups(reader, counting, values),
        top=[TopJob(*row) for row in reader.rows(counting.top, values)],
        left_out=dict(reader.rows(counting.left_out, values)),
        earliest=min((use.started_at for use in uses), default=EVER),
    )
    return summary, uses


def _peaks(uses: Iterable[Use], span: Span) -> dict[str, int]:
    """Peak number of GPUs in use within the span: by user, and in total.

    A shared GPU is in use while any of its jobs runs. At equal times, ends come before starts.
    """
    edges = []
    for use in uses:
        start, end = max(use.started_at, span.low), min(use.finished_at, span.high)
        if start < end:
            edges += [(start, 1, use), (end, -1, use)]
    edges.sort(key=lambda edge: edge[:2])
    # By user, and in total: number of uses of each GPU in use.
    holders: dict[str, dict[int, int]] = {who: {} for _, _, use in edges for who in ("", use.user)}
    peaks = dict.fromkeys(holders, 0)
    for _, change, use in edges:
        for who in ("", use.user):
            busy = holders[who]
            for gpu in use.gpus:
                count = busy.get(gpu, 0) + change
                if count:
                    busy[gpu] = count
                else:
                    del busy[gpu]
            if len(busy) > peaks[who]:
                peaks[who] = len(busy)
    return peaks


def _groups(reader: Reader, counting: _Counting, values: dict[str, Any]) -> list[tuple[str, str, Usage]]:
    groups = [(user, project, Usage(*sums)) for user, project, *sums in reader.rows(counting.groups, values)]
    # Tasks that have not started are a range in their array's record.
    for user, project, is_active, pending, gpus in reader.rows(counting.waiting_tasks, values):
        count = len(parse_tasks(pending))
        usage = Usage(total=count, gpu_jobs=count * (gpus > 0), gpus=count * gpus)
        usage.queued, usage.cancelled = (count, 0) if is_active else (0, count)
        groups.append((user, project, usage))
    return groups


def _folded(summaries: list[Summary], question: Question) -> Statistics:
    """Combine all summaries, for the user of the query if it names one."""
    wanted = question.user
    by_user: dict[str, Usage] = {}
    by_project: dict[str, Usage] = {}
    for summary in summaries:
        for user, project, usage in summary.groups:
            if wanted is None or user == wanted:
                by_user[user] = by_user.get(user, Usage()) + usage
                by_project[project] = by_project.get(project, Usage()) + usage
    longest = (job for summary in summaries for job in summary.top if wanted is None or job.user == wanted)
    return Statistics(
        total=sum(by_user.values(), Usage()),
        by_user=dict(sorted(by_user.items(), key=_by_use)),
        by_project=dict(sorted(by_project.items(), key=_by_use)),
        top=heapq.nsmallest(TOP, longest, key=lambda job: (-job.run_s, job.key)),
        peak_gpus=max(summary.peaks.get(wanted or "", 0) for summary in summaries),
        left_out=sum(
            count
            for summary in summaries
            for user, count in summary.left_out.items()
            if wanted is None or user == wanted
        ),
    )


def _by_use(item: tuple[str, Usage]) -> tuple[float, int, str]:
    name, usage = item
    return -usage.gpu_s, -usage.total, name


# ---------------------------------------------------------------- predictions

_PREDICTED = f"""
SELECT key, {NAME}, user, state, json_extract(spec, '$.predicted_mib') FROM jobs
WHERE progress IS NULL AND (:user IS NULL OR user = :user) AND (finished_at IS NULL OR finished_at >= :since)
    AND {KIND} AND json_extract(spec, '$.predicted_mib') > 0 ORDER BY key
"""


def predictions(reader: Reader, question: Question, samples: Path) -> list[Prediction]:
    """Jobs with predicted memory, each with the measured value."""
    rows = reader.rows(_PREDICTED, question._asdict())
    measured = most_used(samples, [label(key) for key, *_ in rows])
    return [
        Prediction(key, name, user, state, mib, measured[label(key)]) for key, name, user, state, mib in rows
    ]
