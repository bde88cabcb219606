"""Options of gflow spot."""

from __future__ import annotations

from gflow.options.job_options import COMMON, Option

OPTIONS = (
    Option(
        "cloud",
        "text",
        "metadata service to poll: aws, gcp or azure, optionally with an address: aws=http://127.0.0.1:8000",
        metavar="NAME",
    ),
    Option("every", "seconds", "polling interval in seconds (default 5)", metavar="S", low=1),
    *COMMON,
)
