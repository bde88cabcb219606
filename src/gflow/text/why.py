"""`gjob why`: what is in a job's way, when it will probably start, and what would start now."""

from __future__ import annotations

from datetime import datetime

from gflow.core.forecast.wait_report import WaitReport
from gflow.core.model import Job, JobState
from gflow.text.table import clock


def why_page(job: Job, found: WaitReport | None, now: float) -> str:
    """A few lines for people."""
    name = f"Job {job.label} ({job.name})"
    if found is None:
        if job.state is JobState.RUNNING:
            return f"{name} runs.\n"
        reason = f": {job.reason}" if job.reason else ""
        return f"{name} is over: {job.state.value}{reason}.\n"
    lines = [f"{name} waits."]
    lines += [f"  {place}. {why}" for place, why in enumerate(found.blockers, 1)]
    lines += [f"     limit of {limit}" for limit in found.limits]
    if found.start is None:
        lines.append("Nobody can tell when it will start.")
    else:
        start = found.start
        about = f"It starts at about {_moment(start.expected, now)} (in {clock(start.expected - now)})"
        probably = f"; probably by {_moment(start.latest, now)}."
        lines.append(about + (probably if start.earliest < start.latest else "."))
    if (promised := found.promised_at) is not None:
        lines.append(_passing(promised, now))
    if (until := found.overflows_at) is not None:
        lines.append(f"If it has not started here by {_moment(until, now)}, it goes to {job.spec.overflow}.")
    if found.instead and job.abroad is not None:
        lines.append(f"It would start sooner with {' or '.join(found.instead)}: gjob hold {job.label},")
        lines.append(f"gjob update {job.label} …, gjob release {job.label}.")
    elif found.instead:
        lines.append(f"It would start now with {' or '.join(found.instead)}: gjob update {job.label} …")
    return "\n".join(lines) + "\n"


def _passing(promised: float, now: float) -> str:
    """How long others may pass it, in words."""
    if promised > now:
        return f"Others may pass it until {_moment(promised, now)}; from then on its start is promised."
    return "It has waited long enough to be promised its start; those who have waited longer come first."


def _moment(seconds: float, now: float) -> str:
    """The time of day, with the date unless it is today."""
    moment = datetime.fromtimestamp(seconds)
    today = moment.date() == datetime.fromtimestamp(now).date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%dT%H:%M")
