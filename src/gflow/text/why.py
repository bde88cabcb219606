"""The page of `gjob why`: what blocks a job, its ETA, and changes with which it would start earlier."""

from __future__ import annotations

from gflow.core.forecast.wait_report import WaitReport
from gflow.core.model import Job, JobState
from gflow.text.table import clock, near_moment
from gflow.wire.shell_words import spell_change


def why_page(job: Job, found: WaitReport | None, now: float) -> str:
    """The page as text. `found` is None for a job that does not wait."""
    name = f"Job {job.label} ({job.name})"
    if found is None:
        if job.state is JobState.RUNNING:
            return f"{name} is running.\n"
        reason = f": {job.reason}" if job.reason else ""
        return f"{name} has ended: {job.state.value}{reason}.\n"
    lines = [f"{name} is waiting."]
    lines += [f"  {place}. {why}" for place, why in enumerate(found.blockers, 1)]
    lines += [f"     limit of {limit}" for limit in found.limits]
    if found.start is None:
        lines.append("Its start time cannot be estimated.")
    else:
        start = found.start
        about = f"It starts at about {near_moment(start.expected, now)} (in {clock(start.expected - now)})"
        probably = f"; probably by {near_moment(start.latest, now)}."
        lines.append(about + (probably if start.earliest < start.latest else "."))
    if (reserved_at := found.promised_at) is not None:
        lines.append(_reservation_note(reserved_at, now))
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
    return "\n".join(lines) + "\n"


def _reservation_note(reserved_at: float, now: float) -> str:
    """When the job gets a start reservation, in words. `reserved_at`: seconds since 1970."""
    if reserved_at > now:
        until = near_moment(reserved_at, now)
        return f"Other jobs may start before it until {until}; then it gets a start reservation."
    return "It has waited long enough for a start reservation; jobs that have waited longer come first."
