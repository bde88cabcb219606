"""Options of gflow gpus, `gflow gpus watch` and `gflow gpus pick`."""

from __future__ import annotations

from gflow.options.commands.fit_options import MODEL, RECIPE
from gflow.options.job_options import COMMON, JSON, Option

SHOW = (JSON, *COMMON)
WATCH = (
    Option("interval", "count", "seconds between samples (default 1)", short="n", metavar="S", low=1),
    Option("count", "count", "stop after this many samples", short="c", metavar="N", low=1),
    Option("csv", "flag", "comma-separated values, with a header"),
    Option("json", "flag", "one JSON object per line"),
    *COMMON,
)
PICK = (
    Option("workload", "text", "a named workload: see above", short="w", metavar="NAME"),
    *MODEL,
    *RECIPE,
    Option("gpu", "text", "choose among these GPUs only: H200,A100-40GB", aliases=("gpus",), metavar="LIST"),
    Option("spot", "flag", "compare spot prices instead of prices on demand"),
    JSON,
    *COMMON,
)
