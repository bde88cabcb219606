"""Options of gflow events."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

OPTIONS = (
    Option("on", "text", "only these events: job_failed,job_started", metavar="EVENTS"),
    Option("after", "count", "start after the event with this id instead of now", metavar="ID", low=0),
    Option("past", "flag", "print past events only, then exit (default: all; with --after: those after it)"),
    Option("count", "count", "stop after this many", short="c", metavar="N", low=1),
    JSON,
    *COMMON,
)
