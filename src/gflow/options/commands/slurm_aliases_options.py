"""Options of gflow slurm-aliases."""

from __future__ import annotations

from gflow.options.job_options import COMMON, Option

SHELLS = ("bash", "zsh", "fish")
OPTIONS = (
    Option("shell", "text", "bash, zsh or fish (default: $SHELL)", metavar="SHELL", choices=SHELLS),
    *COMMON,
)
