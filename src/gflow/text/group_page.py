"""The page of `gjob show` for a group, and the lines about the tasks of an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gflow.core.queries.group_summary import GroupCounts, GroupSummary
from gflow.text.group_row import COUNTS, bar, percent
from gflow.text.job_page import facts
from gflow.text.table import clock, moment, near_moment, table
from gflow.wire.answers.groups import FailedJob, GroupAnswer, RankedJob

BAR = 30
# Rows of the table of jobs on a terminal.
ROWS = 20
# Values of a parameter that are named.
MOST_VALUES = 6


def group_page(group: GroupAnswer, summary: GroupSummary, now: float) -> str:
    """The page of a group, without the table of its jobs. Leaves out lines that are empty."""
    lines = [
        ("Group", str(group.id)),
        ("Name", group.name),
        ("User", group.user),
        ("Jobs", f"{group.total} ({spell_counts(group.counts)})"),
        *_figures(group, now),
        ("Started", "" if summary.started_at is None else moment(summary.started_at)),
        ("Finished", "" if summary.finished_at is None else moment(summary.finished_at)),
    ]
    return facts([line for line in lines if line[1]]) + _failed_lines(group)


def tasks_page(group: GroupAnswer, now: float) -> str:
    """What the page of an array says about its tasks as a whole."""
    return facts([line for line in _figures(group, now) if line[1]]) + _failed_lines(group)


def spell_counts(counts: GroupCounts) -> str:
    """Counts by state: `12 running, 150 waiting, 8 failed, 3 stopped early`."""
    found = {name: getattr(counts, name) for name, _ in COUNTS}
    found["cancelled"] -= counts.stopped_early
    found["stopped early"] = counts.stopped_early
    return ", ".join(f"{count} {name}" for name, count in found.items() if count)


def rows_note(group: GroupAnswer, shown: int, total: int) -> str:
    """The line below a table that has only the first jobs."""
    if shown >= total:
        return ""
    return f"(the first {shown} of {total}; gjob results {group.id} lists all)\n"


def _figures(group: GroupAnswer, now: float) -> list[tuple[str, str]]:
    left = group.left_s
    return [
        ("Progress", f"{bar(group.progress, BAR)} {percent(group.progress)}"),
        ("Time left", "" if left is None else f"about {clock(left)}, until {near_moment(now + left, now)}"),
        ("Parameters", _spell_varied(group.parameters)),
        (f"Best {group.metric}", _spell_ranked(group.best)),
        (f"Worst {group.metric}", _spell_ranked(group.worst)),
    ]


def _spell_varied(parameters: Mapping[str, Sequence[str]]) -> str:
    """The parameters that differ: `lr=0.1,0.01 seed=1,2,3,… (20 values)`."""
    return " ".join(f"{name}={_spell_values(values)}" for name, values in parameters.items())


def _spell_values(values: Sequence[str]) -> str:
    if len(values) <= MOST_VALUES:
        return ",".join(values)
    return ",".join(values[: MOST_VALUES - 2]) + f",…,{values[-1]} ({len(values)} values)"


def _spell_ranked(job: RankedJob | None) -> str:
    if job is None:
        return ""
    return f"{job.value:.4g}, job {job.id} ({', '.join([*_pairs(job.parameters), job.state])})"


def _pairs(parameters: Mapping[str, str]) -> list[str]:
    """Parameters as one text: `lr=0.1 seed=2`; none if there are none."""
    text = " ".join(f"{name}={value}" for name, value in parameters.items())
    return [text] if text else []


def _failed_lines(group: GroupAnswer) -> str:
    """The first failed jobs with their reasons."""
    shown, count = group.failed_jobs, group.counts.failed
    if not shown:
        return ""
    lines = table(("FAILED", "REASON", "PARAMS"), [_failed_row(job) for job in shown])
    more = (
        f"(the first {len(shown)} of {count}; gjob log {group.id} --failed)\n" if len(shown) < count else ""
    )
    return f"\n{lines}{more}"


def _failed_row(job: FailedJob) -> list[str]:
    return [str(job.id), job.reason or job.state, "".join(_pairs(job.parameters)) or "-"]
