"""Options of ginfo."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, WATCH, Option

OPTIONS = (
    Option(
        "long", "flag", "details of each GPU: memory, load, temperature, jobs, other processes", short="l"
    ),
    Option("target", "text", "partitions, nodes and GPUs of this cluster instead", metavar="NAME"),
    *WATCH,
    JSON,
    *COMMON,
)
