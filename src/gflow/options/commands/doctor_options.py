"""Options of gflow doctor."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

OPTIONS = (
    Option("quiet", "flag", "print only warnings and problems", short="q"),
    JSON,
    *COMMON,
)
