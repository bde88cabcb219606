"""Options of gctl, `gctl quota` and `gctl reserve`."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

OPTIONS = (
    Option(
        "gpu",
        "text",
        "drain, resume: only these GPUs: 1 or 0,2-3; gpu-process: the GPU",
        short="g",
        aliases=("gpus",),
        metavar="LIST",
    ),
    Option("reason", "text", "drain: the reason, shown to users", short="r", metavar="TEXT"),
    Option("pid", "count", "gpu-process: the process", metavar="PID", low=1),
    Option("name", "text", "token create: what it is for", short="n", metavar="TEXT"),
    Option(
        "days", "count", "token create: days until it expires (default 90)", metavar="N", low=1, high=3650
    ),
    JSON,
    *COMMON,
)
# Options of each command, besides --json and --help.
OPTIONS_OF = {
    "drain": ("gpu", "reason"), "resume": ("gpu",), "gpu-process": ("gpu", "pid"), "token": ("name", "days"),
}  # fmt: skip
QUOTA = (
    Option("user", "text", "quota of this user", short="u", metavar="NAME"),
    Option("project", "text", "quota of this project", metavar="NAME"),
    Option("default-user", "flag", "quota of every user without one of their own"),
    Option("default-project", "flag", "quota of every project without one of its own"),
    Option("max-running-jobs", "count", "running jobs at once", metavar="N", low=0),
    Option("max-running-gpus", "count", "GPUs of running jobs at once", metavar="N", low=0),
    Option("max-queued-jobs", "count", "waiting jobs; an array counts once", metavar="N", low=0),
    Option("force", "flag", "set: accept a user or project that is not known"),
    JSON,
    *COMMON,
)
RESERVE = (
    Option(
        "user",
        "text",
        "create: the user to reserve for; list: only reservations of this user, all: of every user",
        short="u",
        metavar="NAME",
    ),
    Option("gpus", "count", "number of GPUs, any that are not reserved then", short="g", metavar="N", low=1),
    Option("gpu-spec", "text", "exactly these GPUs: 0,2-3", metavar="LIST"),
    Option(
        "start",
        "time",
        "start time: 14:00, 2026-12-24T08:00, now+2h (default: now)",
        short="s",
        metavar="TIME",
    ),
    Option(
        "duration",
        "duration",
        "duration: 2h30m, 1d, 90 (minutes) or 1-02:00:00",
        short="d",
        metavar="TIME",
        low=1,
    ),
    Option("force", "flag", "create: accept a user that is not known"),
    Option(
        "dry-run", "flag", "create, update: only say what would be reserved, and which jobs it would stop"
    ),
    Option("status", "text", "list: pending, active, completed or cancelled", metavar="STATE"),
    Option("active", "flag", "list: only reservations that have not ended"),
    Option("timeline", "flag", "list: draw bars over the next two days"),
    Option("range", "text", "timeline: time span to draw: 48h, or -24h:+24h", metavar="SPAN"),
    JSON,
    *COMMON,
)
# A span inside the value of --range.
RANGE_SPAN = Option("range", "duration", "", low=1)
