"""Options of gstats."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, ME, Option

OPTIONS = (
    Option("user", "text", "jobs of this user (default: you); all: of all users", short="u", metavar="NAME"),
    ME,
    Option("all-users", "flag", "jobs of all users", short="a"),
    Option(
        "since",
        "text",
        "active jobs, and jobs that ended since this time: 2h, 7d, today, 2026-12-24 (default: all "
        "stored jobs)",
        short="t",
        metavar="TIME",
    ),
    Option("predictions", "flag", "compare predicted GPU memory (gbatch --fit) with the measured peak"),
    Option("chart", "flag", "a bar of GPU-hours for each day; efficiency and waits (default: 14 days)"),
    Option(
        "html",
        "path",
        "write a report with charts to FILE, to send or to publish (default: 14 days)",
        metavar="FILE",
    ),
    Option(
        "output",
        "text",
        "output format: table, json or csv",
        short="o",
        metavar="FORM",
        choices=("table", "json", "csv"),
    ),
    JSON,
    *COMMON,
)
