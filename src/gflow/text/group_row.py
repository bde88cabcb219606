"""The line of gqueue for a group or an array: counts by state, progress bar, time to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gflow.core.forecast.explain import Blocker
from gflow.core.ids import JobKey
from gflow.core.model import Job, JobState, Moment
from gflow.core.queries.group_summary import GroupCounts, GroupSummary
from gflow.text.queue import COLUMNS, Entry, spell_command, when
from gflow.text.table import clock

# Columns that show the same for each job of a group.
COMMON = ("NODES", "GPUS", "CPUS", "MEMORY", "USER", "PROJECT", "PRIORITY", "TIMELIMIT", "TARGET", "WORKDIR",
          "SUBMIT", "GROUP")  # fmt: skip
# The counts of a group in the order of its line, each with the state whose short name it has.
COUNTS = (
    ("running", JobState.RUNNING),
    ("waiting", JobState.QUEUED),
    ("held", JobState.HOLD),
    ("finished", JobState.FINISHED),
    ("failed", JobState.FAILED),
    ("cancelled", JobState.CANCELLED),
)
BAR = 8


class GroupLine(NamedTuple):
    """What a line shows of a group besides the job that stands for it."""

    # Its number; negative: that of an array.
    group: int
    summary: GroupSummary
    # Whether its jobs have the same name.
    has_one_name: bool


def group_id(job: Job) -> str:
    """The id of the group of a job, or of its array."""
    return f"g{job.spec.group}" if job.spec.group > 0 else str(job.number)


def group_name(job: Job, *, has_one_name: bool) -> str:
    """The name of a group: the name of its jobs, or the template of their names."""
    return job.spec.name_template or job.name + ("" if has_one_name else ", …")


def group_state(counts: GroupCounts) -> JobState:
    """The state of a group: that of its active jobs, else Failed if a job failed."""
    if not counts.ended or counts.ended < counts.total:
        return next((state for name, state in COUNTS if getattr(counts, name)), JobState.QUEUED)
    if counts.failed:
        return JobState.FAILED
    return JobState.FINISHED if counts.finished else JobState.CANCELLED


def spell_counts(counts: GroupCounts) -> str:
    """Counts by state: `12R 150PD 30CD 8F`."""
    found = [f"{getattr(counts, name)}{state.row.short}" for name, state in COUNTS if getattr(counts, name)]
    return " ".join(found)


def bar(part: float, columns: int = BAR) -> str:
    """A progress bar: `[####----]`. It is full only at the end."""
    filled = int(part * columns)
    return f"[{'#' * filled}{'-' * (columns - filled)}]"


def percent(part: float) -> str:
    return f"{int(100 * part)}%"


def group_row_maker(
    names: Sequence[str],
    now: Moment,
    lines: Mapping[JobKey, GroupLine],
    job_row: Callable[[Entry], list[str]],
) -> Callable[[Entry], list[str]]:
    """A function that makes the cells of an entry: of its group if it stands for one, else of its job."""
    has_progress = "PROGRESS" in names

    def row(entry: Entry) -> list[str]:
        line = lines.get(entry[0].key)
        if line is None:
            return job_row(entry)
        cells = _group_cells(*entry, line, now, has_progress=has_progress)
        return [cells.get(name, "-") for name in names]

    return row


def _group_cells(
    job: Job, why: Blocker | None, line: GroupLine, now: Moment, *, has_progress: bool
) -> dict[str, str]:
    summary = line.summary
    state, left = group_state(summary.counts), summary.left_s
    counts = _spell_line(summary, str(why or ""), has_progress=has_progress)
    own = {
        "JOBID": group_id(job),
        "NAME": group_name(job, has_one_name=line.has_one_name),
        "ST": state.row.short,
        "STATE": state.value,
        "TIME": _time(summary, now),
        "NODELIST(REASON)": counts,
        "REASON": counts,
        "PROGRESS": percent(summary.progress),
        "ETA": "-" if left is None else clock(left),
        "START": when(summary.started_at),
        "END": when(summary.finished_at),
        "COMMAND": spell_command(job, job.spec.template or job.spec.command),
    }
    return own | {name: COLUMNS[name](job, why, now) for name in COMMON}


def _time(summary: GroupSummary, now: Moment) -> str:
    """Time since the first start, to the last end."""
    if summary.started_at is None:
        return "-"
    return clock((summary.finished_at or now.wall) - summary.started_at)


def _spell_line(summary: GroupSummary, reason: str, *, has_progress: bool) -> str:
    """`12R 150PD 30CD 8F [##------] 25% 01:20:00 left`; the last two have columns of their own at times."""
    parts = [spell_counts(summary.counts)]
    if reason and not summary.counts.running:
        parts.append(f"({reason})")
    parts.append(bar(summary.progress))
    if not has_progress:
        parts.append(percent(summary.progress))
        if summary.left_s is not None:
            parts.append(f"{clock(summary.left_s)} left")
    return " ".join(parts)
