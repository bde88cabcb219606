"""Options of grun: those of a job that is submitted alone, and its own."""

from __future__ import annotations

from gflow.options.job_options import CAPTURE, JOB, Option

OPTIONS = (
    *(option for option in JOB + CAPTURE if option.name not in ("array", "param", "param-file", "hold")),
    Option(
        "detachable", "flag", "--pty: the job keeps running when this terminal is closed; Ctrl-\\ detaches"
    ),
)
