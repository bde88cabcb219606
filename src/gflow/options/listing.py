"""The options of gqueue and gstats. Apart from the big table, so that gbatch need not load them."""

from __future__ import annotations

from gflow.options.table import COMMON, JSON, WATCH, Option

GQUEUE = (
    Option("all", "flag", "jobs that are over too", short="a"),
    Option("completed", "flag", "only jobs that are over", short="c"),
    Option("states", "text", "only these states: PD, Running, …", short="s", metavar="LIST", many=True),
    Option(
        "jobs",
        "text",
        "only these jobs: 17, 42_3, 5-9, @ (my latest)",
        short="j",
        aliases=("job",),
        metavar="LIST",
        many=True,
    ),
    Option(
        "names", "text", "only jobs of these names", short="N", aliases=("name",), metavar="LIST", many=True
    ),
    Option(
        "user",
        "text",
        "only these people's jobs; all: everybody's (default)",
        short="u",
        aliases=("users",),
        metavar="LIST",
        many=True,
    ),
    Option(
        "project",
        "text",
        "only jobs of these projects",
        short="P",
        aliases=("projects",),
        metavar="LIST",
        many=True,
    ),
    Option("target", "text", "only jobs of these targets: local, slurm", metavar="LIST", many=True),
    Option("partition", "text", "only jobs for these partitions", metavar="LIST", many=True),
    Option(
        "since",
        "text",
        "active jobs, and those that ended since: 1h, 2d, today, 2026-12-24",
        metavar="TIME",
    ),
    Option(
        "sort",
        "text",
        "id, state, time, name, gpus or priority; -time is the other way round",
        short="r",
        metavar="ORDER",
        choices=("id", "state", "time", "name", "gpus", "priority"),
    ),
    Option("limit", "count", "the first N; -N: the last N; 0: all", short="n", metavar="N"),
    Option("offset", "count", "leave out the first N", metavar="N", low=0),
    Option(
        "format",
        "text",
        "columns, e.g. 'JOBID,NAME,ST,NODES,NODELIST(REASON)'",
        short="f",
        metavar="COLS",
    ),
    Option("group", "flag", "one table for each state", short="g"),
    Option("tree", "flag", "jobs below those they wait for", short="t"),
    Option(
        "output",
        "text",
        "table, json, csv or yaml",
        short="o",
        metavar="FORM",
        choices=("table", "json", "csv", "yaml"),
    ),
    JSON,
    *WATCH,
    Option("tmux", "flag", "does nothing: there are no terminal sessions", short="T"),
    *COMMON,
)

GSTATS = (
    Option("user", "text", "this person's jobs (default: yours)", short="u", metavar="NAME"),
    Option("all-users", "flag", "everybody's jobs", short="a"),
    Option(
        "since",
        "text",
        "jobs that ended since, or are active: 1h, 7d, today, 2026-12-24 (default: all that are kept)",
        short="t",
        metavar="TIME",
    ),
    Option("predictions", "flag", "GPU memory that was predicted (gbatch --fit) beside what was measured"),
    Option(
        "output", "text", "table, json or csv", short="o", metavar="FORM", choices=("table", "json", "csv")
    ),
    JSON,
    *COMMON,
)
