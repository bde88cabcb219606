"""Options of gflow plan."""

from __future__ import annotations

from gflow.options.commands.fit_options import MODEL, RECIPE
from gflow.options.job_options import COMMON, JSON, Option

# What the plan chooses.
CHOSEN = ("batch", "accumulate", "checkpointing")
TRAINING = tuple(option for option in RECIPE if option.name not in CHOSEN)
PLAN = (
    Option(
        "on",
        "text",
        "the GPUs: H200, 4xA100-80GB (default: the GPUs of this machine)",
        aliases=("gpu", "gpus"),
        metavar="GPUS",
    ),
    Option(
        "effective-batch",
        "count",
        "examples per optimizer step over all GPUs (default 32)",
        metavar="N",
        low=1,
        high=1 << 20,
    ),
    Option("cap", "size", "assume only this much memory per GPU: 24G", metavar="SIZE", low=1),
    Option(
        "without",
        "text",
        "do not use these techniques: 8-bit, offload, sharding, zero1, zero2, fsdp, checkpointing",
        metavar="LIST",
        many=True,
    ),
    Option("take", "count", "choose this way of the list, counted from 1", metavar="N", low=1, high=100),
    Option("out", "path", "write the plan to this file", metavar="FILE"),
)
OPTIONS = (*MODEL, *TRAINING, *PLAN, JSON, *COMMON)
GROUPS = {"model": MODEL, "training": TRAINING, "plan": PLAN, "options": (JSON, *COMMON)}
