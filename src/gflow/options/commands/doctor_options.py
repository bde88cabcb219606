"""Options of gflow doctor."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

OPTIONS = (
    Option("job", "text", "check the environment of this job instead of the machine", metavar="JOB"),
    Option("gpu", "flag", "also measure the free GPUs, or those in LIST, with PyTorch"),
    Option("force", "flag", "with --gpu: measure GPUs in use, too"),
    Option("quiet", "flag", "print only warnings and problems", short="q"),
    JSON,
    *COMMON,
)
