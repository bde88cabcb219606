"""The page of `gjob why`: what blocks a job, its ETA, and changes with which it would start earlier."""

from __future__ import annotations

import textwrap

import msgspec

from gflow.core.forecast.explain import Blocker
from gflow.core.forecast.wait_report import WaitReport
from gflow.core.model import Job, JobState
from gflow.text.table import clock, near_moment
from gflow.wire.shell_words import spell_change

WIDTH = 79


def why_page(job: Job, found: WaitReport | None, now: float) -> str:
    """The page as text. `found` is None for a job that does not wait."""
    name = f"Job {job.label} ({job.name})"
    if found is None:
        if job.state is JobState.RUNNING:
            return f"{name} is running.\n"
        reason = f": {job.reason}" if job.reason else ""
        return f"{name} has ended: {job.state.value}{reason}.\n"
    lines = [f"{name} is waiting."]
    lines += [f"  {place}. {_spell_blocker(why, now)}" for place, why in enumerate(found.blockers, 1)]
    lines += [f"     limit of {limit}" for limit in found.limits]
    if found.never:
        lines.append(f"It never starts {found.never}.")
    elif found.start is None:
        lines.append("Its start time cannot be estimated.")
    else:
        start = found.start
        about = f"It starts at about {near_moment(start.expected, now)} (in {clock(start.expected - now)})"
        probably = f"; probably by {near_moment(start.latest, now)}."
        lines.append(about + (probably if start.earliest < start.latest else "."))
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


def _wrap(line: str) -> str:
    """The line, continued on further lines after column 79."""
    indent = "     " if line.startswith(" ") else ""
    lines = textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines) + "\n"


def _spell_blocker(why: Blocker, now: float) -> str:
    """A blocker with the times of a GPU reservation and the assumed run time of a running job."""
    text = str(why)
    if why.since is not msgspec.UNSET and why.until is not msgspec.UNSET:
        text += f", {near_moment(why.since, now)} to {near_moment(why.until, now)}"
    if why.assumed_s is not msgspec.UNSET:
        text += f"; it has no --time, {clock(why.assumed_s)} is assumed"
    return text


def _reservation_notes(reserved_at: float, now: float) -> list[str]:
    """When the job gets a start reservation, in words. `reserved_at`: seconds since 1970."""
    if reserved_at > now:
        until = near_moment(reserved_at, now)
        backfill = f"Backfill may start other jobs first until {until}."
        return [backfill, "If it still waits then, it gets a start reservation."]
    return ["It has waited long enough for a start reservation.", "Jobs that have waited longer come first."]
