"""Options of gflow memory and `gflow memory watch`."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

ORDERS = ("memory", "pid", "user", "job")
SHOW = (
    Option(
        "sort", "text", "order of processes: memory (default), pid, user or job", short="r", metavar="ORDER",
        choices=ORDERS,
    ),
    JSON,
    *COMMON,
)  # fmt: skip
WATCH = (
    Option(
        "sort", "text", "order of processes: memory (default), growth, pid, user or job", short="r",
        metavar="ORDER", choices=(*ORDERS, "growth"),
    ),
    Option("interval", "count", "seconds between samples (default 2)", short="n", metavar="S", low=1),
    Option("count", "count", "stop after this many samples", short="c", metavar="N", low=1),
    Option("json", "flag", "one JSON object per line, one line per sample"),
    *COMMON,
)  # fmt: skip
