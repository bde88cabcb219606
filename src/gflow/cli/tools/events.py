"""gflow events: print events as they occur."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from gflow.errors import clean, clean_json
from gflow.job_states import JobState
from gflow.options.commands.events_options import OPTIONS
from gflow.options.parse import parse
from gflow.text.table import moment

ABOUT = """Print events of jobs and GPUs as they occur: submitted, started, ended, held, and so on.

With --json, one object per line. Each event has an id; --after continues after the last one seen.
Events that only repeat another one under a second name are shown only if named with --on."""
EXAMPLES = """gflow events
gflow events 17 18                       # of these jobs
gflow events --on job_failed,job_timeout --json
gflow events --past 17                   # all past events of job 17"""
# Second names of events that are reported under another name too.
REPEATED = frozenset(
    name for state in JobState for names in state.row.events.values() for name in names[1:]
) | {"memory_availability_changed"}


def run(words: list[str]) -> int:
    values, jobs = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow events [options] [JOB…]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    from gflow.client.stream import events

    names = tuple(part.strip() for part in values.get("on", "").split(",") if part.strip())
    left = values.get("count")
    has_dates = bool(values.keys() & {"past", "after"})
    after = values.get("after", 0 if "past" in values else None)
    for event in events(names, tuple(jobs), after, follow="past" not in values):
        if event["event"] == "connected" or (event["event"] in REPEATED and not names):
            continue
        line = (
            clean_json(json.dumps(event).encode()).decode()
            if "json" in values
            else clean(_line(event, has_dates=has_dates))
        )
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if left is not None and (left := left - 1) == 0:
            return 0
    return 0


def _line(event: dict[str, Any], *, has_dates: bool) -> str:
    """One event. `has_dates`: past events have the date, live ones only the time of day."""
    if event["event"] == "missed":
        return f"(events {event['from']} to {event['to']} are no longer stored)"
    at = moment(datetime.fromisoformat(event["at"]).timestamp())
    if not has_dates:
        at = at[11:]
    job = event["job"] or {}
    who = f" {job['name']} ({job['user']})" if job else ""
    which = f" {event['job_id']}" if event["job_id"] is not None else ""
    return f"{at} {event['event']}{which}{who} {event['detail']}".rstrip()
