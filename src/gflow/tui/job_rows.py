"""The rows of the job list: sections, groups of jobs as one row, filter, and the cells of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from gflow.job_states import FINAL_NAMES
from gflow.text.table import clock, near_moment, width
from gflow.tui.line import WIDE, Line, amount, bar, cell

Job = Mapping[str, Any]
RUNNING, WAITING, ENDED = "Running", "Waiting", "Ended"
# From how many jobs on a group or an array is one row.
TOGETHER = {RUNNING: 9, WAITING: 2, ENDED: 2}
STATE_WORDS = {"Queued": "waiting", "Hold": "held", "Running": "running"}
STATE_STYLES = {"Running": "good", "Queued": "wait", "Hold": "wait", "Finished": "good"}
# Headings of the columns of time and of information, by section.
HEADINGS = {RUNNING: ("RUNS", "PROGRESS"), WAITING: ("WAITS", "REASON"), ENDED: ("RAN", "END")}
BAR = 10
# Columns of an expected start, which the day is part of if it is not today.
START = 17
BAD = ("Failed", "Timeout")


class Row(NamedTuple):
    """A heading (no jobs), a job, or a group of jobs."""

    section: str
    # Identifies the row while the list changes: the id of the job, or of the group.
    key: str
    jobs: tuple[Job, ...] = ()
    # Jobs of the section that are not listed.
    left_out: int = 0
    is_group: bool = False
    is_open: bool = False
    depth: int = 0

    @property
    def reference(self) -> str:
        """The job or group in commands: `17`, `42_3`, `g116`."""
        return self.key.partition(":")[2] if self.is_group else self.key


class Listing(NamedTuple):
    """The jobs to show, and how many there are of each kind: each waiting task of an array counts."""

    running: Sequence[Job] = ()
    waiting: Sequence[Job] = ()
    ended: Sequence[Job] = ()
    running_total: int = 0
    waiting_total: int = 0


def rows_of(listing: Listing, wanted: str, opened: frozenset[str], mine: str = "") -> list[Row]:
    """All rows. `wanted`: the filter; `opened`: keys of groups whose jobs are listed; `mine`: a user."""
    rows: list[Row] = []
    for section, jobs, total in (
        (RUNNING, listing.running, listing.running_total),
        (WAITING, listing.waiting, listing.waiting_total),
        (ENDED, listing.ended, len(listing.ended)),
    ):
        shown = [job for job in jobs if matches(job, wanted) and mine in ("", job["user"])]
        left_out = max(0, total - count_tasks(jobs)) if not wanted and not mine else 0
        if shown:
            rows.append(Row(section, f"heading:{section}", left_out=count_tasks(shown) + left_out))
            rows += _in_groups(section, shown, opened)
        if left_out:
            rows.append(Row(section, f"more:{section}", left_out=left_out))
    return rows


def count_tasks(jobs: Iterable[Job]) -> int:
    """The number of jobs, in which each waiting task of an array counts, as in `gqueue`."""
    return sum(map(_tasks_of, jobs))


def matches(job: Job, wanted: str) -> bool:
    """Whether every word of the filter is in the id, name, user, project, state or reason of the job."""
    if not wanted:
        return True
    fields = (job["id"], job["name"], job["user"], job["project"], job["state"], job["reason"])
    text = " ".join(str(field) for field in fields if field is not None).lower()
    return all(word in text for word in wanted.lower().split())


def _group_of(job: Job) -> str:
    """The key of the array or group of a job; empty: it has none."""
    if job["array_id"] is not None:
        return f"array:{job['array_id']}"
    return f"group:g{job['group_id']}" if job["group_id"] is not None else ""


def _in_groups(section: str, jobs: Sequence[Job], opened: frozenset[str]) -> Iterable[Row]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(_group_of(job) or f"job:{job['id']}", []).append(job)
    for group, members in groups.items():
        if len(members) < TOGETHER[section]:
            yield from (_job_row(section, job) for job in members)
            continue
        # The same group may be in several sections.
        key = f"{section[0]}{group}"
        yield Row(section, key, tuple(members), is_group=True, is_open=key in opened)
        if key in opened:
            members.sort(key=lambda job: job["state"] not in BAD)  # failures first
            yield from (_job_row(section, job, depth=1) for job in members)


def _job_row(section: str, job: Job, depth: int = 0) -> Row:
    return Row(section, str(job["id"]), (job,), depth=depth)


# ---------------------------------------------------------------- cells


class Columns(NamedTuple):
    """The widths of the columns of a list."""

    id: int
    name: int
    user: int
    info: int
    # The expected start of a waiting job; 0: the line is too short, or no start is known.
    start: int = 0


def columns_of(rows: Sequence[Row], room: int) -> Columns:
    """Widths for these rows: the name gets at most a quarter of the line, the user is left out if alone."""
    jobs = [job for row in rows for job in row.jobs]
    ids = min(12, max([4, *(len(row.reference) + 2 * row.depth for row in rows if row.jobs)]))
    least = 12 if room >= 60 else 4  # room for the heading of the section
    names = [_name(row) for row in rows if row.jobs]
    name = min(max(least, room // 4), max([least, *map(width, names)]))
    users = {str(job["user"]) for job in jobs}
    user = min(10, max(map(width, users))) if len(users) > 1 else 0
    used = 2 + ids + 1 + name + 1 + (user + 1 if user else 0) + 11 + 8
    start = START if room >= WIDE and any(job.get("expected_at") for job in jobs) else 0
    return Columns(ids, name, user, max(0, room - used), start)


def row_line(row: Row, columns: Columns, now: float) -> Line:
    """The line of a row. `now`: seconds since 1970."""
    if row.key.startswith("heading:"):
        return _heading(row, columns)
    if not row.jobs:
        return ((f"    {row.left_out:,} more: gqueue", "dim"),)
    mark = ("▾ " if row.is_open else "▸ ") if row.is_group else "  "
    first = row.jobs[0]
    pieces = [
        (mark, "bold"),
        (cell("  " * row.depth + row.reference, columns.id) + " ", ""),
        (cell(_name(row), columns.name) + " ", "" if row.depth else "bold"),
    ]
    if columns.user:
        pieces.append((cell(str(first["user"]), columns.user) + " ", ""))
    if row.is_group:
        first_start = _start(row.jobs, now) if columns.start else ""
        return (*pieces, *_group_info(row.jobs, columns.info + 19, first_start))
    pieces += [(cell(_time(first, now), 10) + " ", ""), (cell(_gpus(first), 7) + " ", "")]
    start = columns.start if row.section == WAITING else 0
    if start:
        pieces.append((cell(_start(row.jobs, now) or "-", start - 1) + " ", ""))
    return (*pieces, *_info(first, columns.info - start, now))


def _name(row: Row) -> str:
    """The name; of a job in an opened group its parameters, because the group has the name."""
    parameters = row.jobs[0]["parameters"]
    if row.depth and parameters:
        return " ".join(f"{name}={value}" for name, value in parameters.items())
    names = dict.fromkeys(str(job["name"]) for job in row.jobs)
    return next(iter(names)) if len(names) == 1 else f"{len(names)} names"


def _heading(row: Row, columns: Columns) -> Line:
    """The name of a section with its number of jobs, and what its columns are."""
    before = 2 + columns.id + 1 + columns.name + 1 + (columns.user + 1 if columns.user else 0)
    start = columns.start if row.section == WAITING else 0
    when = cell("START", start) if start else ""
    time, info = HEADINGS[row.section]
    title = f"{row.section} ({row.left_out:,})"
    return (
        (cell(title, before), "head"),
        (cell(time, 11) + cell("GPUS", 8) + when + cell(info, columns.info - start), "dim"),
    )


def epoch(text: str | None) -> float | None:
    """A time of the API as seconds since 1970."""
    return datetime.fromisoformat(text).timestamp() if text else None


def _time(job: Job, now: float) -> str:
    """The run time; for a waiting job the time since its submission."""
    if job["ran_s"] is not None:
        return clock(job["ran_s"])
    if job["state"] in FINAL_NAMES:
        return "-"
    began = epoch(job["started_at"]) if job["state"] == "Running" else epoch(job["submitted_at"])
    return clock(now - began) if began is not None else "-"


def _start(jobs: Sequence[Job], now: float) -> str:
    """When the first of these is expected to start; empty: not known."""
    starts = [at for job in jobs if (at := epoch(job.get("expected_at"))) is not None]
    return near_moment(max(now, min(starts)), now) if starts else ""


def _gpus(job: Job) -> str:
    if job["state"] == "Running":
        ids = ",".join(map(str, job["gpu_ids"]))
        return f"GPU {ids}" if len(ids) <= 3 and ids else ids or ("-" if job["target"] == "local" else "")
    return f"{job['gpus']} GPU" if job["gpus"] else "-"


def _info(job: Job, columns: int, now: float) -> Line:
    """Progress of a running job, the reason of a waiting one, the end of an ended one."""
    state, reason = job["state"], job["reason"] or ""
    if state == "Running":
        return _running_info(job, columns, now)
    if state not in FINAL_NAMES:
        return ((cell(_tasks(job) + (reason or state), columns), "wait"),)
    at = epoch(job["finished_at"])
    when = f" at {near_moment(at, now)}" if at is not None else ""
    detail = f": {reason}" if reason else ""
    style = "dim" if state in ("Finished", "Cancelled") else "bad"
    return ((cell(f"{state}{when}{detail}", columns), style),)


def _tasks(job: Job) -> str:
    """How far an array is; empty for a job."""
    tasks = job["tasks"]
    if tasks is None:
        return ""
    done, failed = tasks["finished"], tasks["failed"]
    parts = [
        amount(tasks["waiting"], "task"),
        f"{done} done" if done else "",
        f"{failed} failed" if failed else "",
    ]
    return ", ".join(filter(None, parts)) + ": "


def _running_info(job: Job, columns: int, now: float) -> Line:
    report, reason = job["progress"], job["reason"]
    if job["stopping"]:
        return ((cell("is being stopped", columns), "wait"),)
    if reason:  # it does not use its GPUs, or survives a kill
        return ((cell(reason, columns), "bad"),)
    if report is None:
        where = "" if job["target"] == "local" else f"on {job['target']} {job['target_nodes'] or ''}"
        return ((cell(where, columns), "dim"),)
    left = report["left_s"]
    if left is not None:
        left = max(0.0, left - (now - (epoch(report["at"]) or now)))
    loss = "" if report["loss"] is None else f" loss {report['loss']:.4g}"
    rest = "" if left is None else f" {clock(left)} left"
    if report["percent"] is None:
        return ((cell(f"step {report['step']}{rest}{loss}", columns), ""),)
    filled, empty = bar(report["percent"] / 100, BAR)
    text = cell(f" {report['percent']:3}%{rest}{loss}", max(0, columns - BAR))
    return ((filled, "good"), (empty, "dim"), (text, ""))


def _group_info(jobs: Sequence[Job], columns: int, start: str = "") -> Line:
    """How many jobs of a group are in each state: `12 waiting: Resources`, `10 Finished, 2 Failed`.

    `start`: when the first of them is expected to start.
    """
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job["state"]] = counts.get(job["state"], 0) + _tasks_of(job)
    text = ", ".join(f"{count} {STATE_WORDS.get(state, state)}" for state, count in counts.items())
    text += f", the first starts about {start}" if start else ""
    reasons = dict.fromkeys(job["reason"] for job in jobs if job["reason"])
    if len(reasons) == 1 and jobs[0]["state"] not in FINAL_NAMES:
        text += f": {next(iter(reasons))}"
    bad = any(state in BAD for state in counts)
    style = "bad" if bad else STATE_STYLES.get(jobs[0]["state"], "dim")
    return ((cell(text, columns), style),)


def _tasks_of(job: Job) -> int:
    """The number of waiting tasks of an array; 1 for a job."""
    return job["tasks"]["waiting"] if job["tasks"] and job["state"] not in FINAL_NAMES else 1
