"""Options of gflow target and its commands."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

LIST = (JSON, *COMMON)
ADD = (
    Option("host", "text", "the login node, as ssh knows it"),
    Option("partition", "text", "default partition of jobs there"),
    Option("account", "text", "default account of jobs there"),
    Option("chdir", "text", "working folder of jobs there (default: your home)", metavar="DIR"),
    Option("folder", "text", "folder for the files of gflow there (default: ~/.gflow)", metavar="DIR"),
    *COMMON,
)
CONNECT = COMMON
TEST = (
    Option("timeout", "count", "seconds to wait for the job (default 300)", metavar="S", low=1),
    Option("partition", "text", "partition of the job"),
    *COMMON,
)
OPTIONS = LIST
