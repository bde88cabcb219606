"""Options of gflow launch."""

from __future__ import annotations

from gflow.options.job_options import COMMON, Option

OPTIONS = (
    Option(
        "gpus",
        "count",
        "number of GPUs, with one process each (default: all GPUs of the job, or of this machine)",
        short="g",
        aliases=("nproc-per-node", "nproc_per_node"),  # torchrun's names
        metavar="G",
        low=1,
        high=1024,
    ),
    Option("processes", "count", "number of processes, without GPUs", metavar="N", low=1, high=1024),
    Option(
        "nodes",
        "count",
        "expected number of nodes of the Slurm job; another number is an error (default: no check)",
        aliases=("nnodes",),
        metavar="N",
        low=1,
        high=65536,
    ),
    Option(
        "nodes-file",
        "path",
        "machines without Slurm, one per line: run the same command on each of them; ranks meet at the first",
        metavar="FILE",
    ),
    Option(
        "node",
        "count",
        "number of this machine in --nodes-file, from 0 (default: found by its name or address)",
        metavar="N",
        low=0,
        high=65535,
    ),
    Option(
        "port",
        "count",
        "port at which the ranks of --nodes-file meet (default 29500)",
        metavar="P",
        low=1,
        high=65535,
    ),
    Option(
        "network",
        "text",
        "network for NCCL between nodes: auto (detect it and print the choice; the default), ethernet or "
        "infiniband",
        metavar="KIND",
        choices=("auto", "ethernet", "infiniband"),
    ),
    Option(
        "plan",
        "path",
        "file of gflow plan --out, for train.Run.planned(); also sets the default of --gpus",
        metavar="FILE",
    ),
    Option("module", "flag", "run a Python module instead of a file", short="m"),
    Option("logs", "path", "write the output of each rank to this folder", metavar="DIR"),
    Option(
        "stall",
        "seconds",
        "stop the run after this time without output from any rank and without a report of progress: 90 "
        "(seconds) or 10m (default: never)",
        metavar="T",
        low=1,
    ),
    Option(
        "grace",
        "seconds",
        "time between a stop request and KILL: 90 (seconds) or 5m (default 60, or --grace of the job)",
        metavar="S",
        low=0,
    ),
    Option(
        "nccl-timeout",
        "seconds",
        "how long a rank of a gflow.train run waits for the others before it fails: 90 (seconds) or 30m "
        "(default 5m)",
        metavar="T",
        low=1,
    ),
    Option(
        "expandable-segments",
        "flag",
        "set PyTorch's allocator to expandable_segments:True, against fragmentation of GPU memory",
    ),
    *COMMON,
)
