"""Options of gflow simulate."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

OPTIONS = (
    Option(
        "map",
        "text",
        "meaning of the columns: submit=…,duration=COLUMN:ms, gpus=…,user=…",
        short="m",
        metavar="COLUMNS",
    ),
    Option("where", "text", "only rows with this value: cluster=6214e9", short="w", metavar="COLUMN=VALUE"),
    Option(
        "pool",
        "count",
        "number of GPUs to replay on (default: as many as give --load)",
        metavar="N",
        low=1,
        high=65536,
    ),
    Option(
        "load",
        "text",
        "offered load; with --pool, jobs are dropped to reach it (default 0.9)",
        metavar="PART",
    ),
    Option("policy", "text", "policies to compare (default greedy,easy,ours)", short="p", metavar="NAMES"),
    Option("limits", "flag", "give every job a time limit, as users typically do (seeded)"),
    Option("resume", "flag", "preempted jobs go on where they were stopped (default: they start over)"),
    Option(
        "jitter",
        "count",
        "shift submissions by up to this many seconds (seeded)",
        metavar="S",
        low=0,
        high=10**9,
    ),
    Option("seed", "count", "random seed (default 0)", metavar="N", low=0, high=10**9),
    Option(
        "wide", "count", "GPUs from which a job counts as wide (default 8)", metavar="N", low=1, high=65536
    ),
    Option(
        "plot",
        "path",
        "plot wait times and GPUs in use: a .png, .svg or .pdf (needs matplotlib)",
        metavar="FILE",
    ),
    JSON,
    *COMMON,
)
