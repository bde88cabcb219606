"""The page of `gjob why`: what blocks a job, its ETA, and changes with which it would start earlier."""

from __future__ import annotations

import textwrap
from math import ceil

import msgspec

from gflow.core.forecast.explain import Blocker
from gflow.core.forecast.wait_report import WITH_DEPENDENCY, Ahead, WaitReport
from gflow.core.model import Job, JobState
from gflow.text.table import clock, near_moment
from gflow.wire.shell_words import spell_change

WIDTH = 79
# Words for blockers without a detail.
_WORDS = {
    "Resources": "no GPU that suits it is free",
    "Drained": "no new jobs start on this machine now",
    "RetryDelay": "it failed, and waits before its next attempt",
}


def why_page(job: Job, found: WaitReport | None, now: float, *, in_array: bool = False) -> str:
    """The page as text. `found` is None for a job that does not wait.

    `in_array`: the job is a task that waits in its array, and the report is about the array.
    """
    name = f"Job {job.label} ({job.name})"
    if found is None:
        if job.state is JobState.RUNNING:
            return f"{name} is running.\n"
        reason = f": {job.reason}" if job.reason else ""
        return f"{name} has ended: {job.state.value}{reason}.\n"
    lines = [f"{name} is waiting."]
    lines += [f"  {place}. {_spell_blocker(why, job, now)}" for place, why in enumerate(found.blockers, 1)]
    lines += [f"     limit of {limit}" for limit in found.limits]
    if found.never:
        lines.append(f"It never starts {found.never}.")
        if found.never == WITH_DEPENDENCY:
            lines.append(f"It starts without its dependencies after: gjob update {job.label} --clear-deps")
    else:
        lines += _spell_start(found, now, in_array)
    if (reserved_at := found.promised_at) is not None:
        lines += _reservation_notes(reserved_at, now)
    if (until := found.overflows_at) is not None:
        lines.append(
            f"If it has not started here by {near_moment(until, now)}, it goes to {job.spec.overflow}."
        )
    instead = " or ".join(map(spell_change, found.instead))
    if instead and job.remote is not None:
        lines.append(f"It would start sooner with {instead}: gjob hold {job.label},")
        lines.append(f"gjob update {job.label} …, gjob release {job.label}.")
    elif instead:
        lines.append(f"It would start now with {instead}: gjob update {job.label} …")
    return "".join(map(_wrap, lines))


def _spell_start(found: WaitReport, now: float, in_array: bool) -> list[str]:
    """When the job starts; if that is not known, what comes before it."""
    it, start = "The next task of its array" if in_array else "It", found.start
    if start is None and found.interval_s is None:
        return ["Its start time cannot be estimated.", *_spell_place(found.ahead)]
    if start is None:
        days = ceil((found.interval_s or 0.0) / 86400)
        return [f"When it starts is not known: probably within {days} days.", *_spell_place(found.ahead)]
    about = f"{it} starts at about {near_moment(start.expected, now)} (in {clock(start.expected - now)})"
    probably = f"; probably by {near_moment(start.latest, now)}."
    return [about + (probably if start.earliest < start.latest else ".")]


def _spell_place(ahead: Ahead | None) -> list[str]:
    """The place of the job in the queue, and how much work comes before it."""
    if ahead is None:
        return []
    if not ahead.jobs:
        return ["It is first in the queue."]
    jobs = f"{ahead.jobs} jobs" if ahead.jobs > 1 else "job"
    work = f"the {jobs} before it would use all of the machine for {clock(ahead.work_s)}"
    return [f"It is number {ahead.jobs + 1} in the queue; {work}."]


def _wrap(line: str) -> str:
    """The line, continued on further lines after column 79."""
    indent = "     " if line.startswith(" ") else ""
    lines = textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines) + "\n"


def _spell_blocker(why: Blocker, job: Job, now: float) -> str:
    """A blocker with the times of a GPU reservation, and the user and assumed run time of a running job."""
    text = str(why)
    if not why.detail and why.code == "BeginTime":
        text += f": it starts at {near_moment(job.spec.begin_at, now)} at the earliest"
    elif not why.detail and why.code in _WORDS:
        text += f": {_WORDS[why.code]}"
    if why.user is not msgspec.UNSET:
        text += f" ({why.user})"
    if why.since is not msgspec.UNSET and why.until is not msgspec.UNSET:
        text += f", {near_moment(why.since, now)} to {near_moment(why.until, now)}"
    if why.assumed_s is not msgspec.UNSET:
        text += f"; it has no --time, {clock(why.assumed_s)} is assumed"
    return text


def _reservation_notes(reserved_at: float, now: float) -> list[str]:
    """When the job gets a start reservation, in words. `reserved_at`: seconds since 1970."""
    if reserved_at > now + 60:
        until = near_moment(reserved_at, now)
        backfill = f"Backfill may start other jobs first until {until}."
        return [backfill, "If it still waits then, it gets a start reservation."]
    if reserved_at > now:
        return ["It gets a start reservation within a minute."]
    return ["It has waited long enough for a start reservation.", "Jobs that have waited longer come first."]
