"""Options of gflow web."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

OPTIONS = (
    Option("no-browser", "flag", "print the link; open no browser"),
    Option("operator", "flag", "with the rights of an operator, for 8 hours (system mode)"),
    Option("logout", "flag", "end all your sessions of the web page"),
    JSON,
    *COMMON,
)
