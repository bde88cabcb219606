"""Options of gflow scale."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, Option

OPTIONS = (
    Option("gpus", "text", "numbers of GPUs to run it on: 1,2,4", short="g", metavar="LIST"),
    Option("shape", "text", "shapes of nodes and GPUs on a cluster: n1_gpu4,n4_gpu1", metavar="LIST"),
    Option("processes", "text", "numbers of processes without GPUs: 1,2,4", metavar="LIST"),
    Option("on", "target", "a cluster: slurm, or a target of gflow.toml", metavar="TARGET"),
    Option("direct", "flag", "run directly on this machine, without the daemon"),
    Option(
        "seconds",
        "seconds",
        "measuring time of each run, 20 (seconds) or 2m (default 20)",
        metavar="T",
        low=1,
    ),
    Option(
        "warmup",
        "count",
        "warm-up steps of each run that are not measured (default 5)",
        metavar="N",
        low=1,
        high=1_000_000,
    ),
    Option(
        "effective-batch",
        "count",
        "samples per step over all GPUs, the same at each size (strong scaling)",
        metavar="B",
        low=1,
        high=1 << 40,
    ),
    Option(
        "samples",
        "text",
        "samples per run, for scripts that do not report them: 50000, or 50000/gpu if it grows with the GPUs",
        metavar="N",
    ),
    Option("module", "flag", "run a Python module instead of a file", short="m"),
    Option("job", "text", "options of gbatch for each run: '--partition a100 --time 10'", metavar="OPTIONS"),
    Option("plot", "path", "write a plot: a .png, .svg or .pdf (needs matplotlib)", metavar="FILE"),
    JSON,
    *COMMON,
)  # fmt: skip
