"""Options of gqueue."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, WATCH, Option

OPTIONS = (
    Option("all", "flag", "include finished jobs", short="a"),
    Option("completed", "flag", "only finished jobs", short="c"),
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
        "names", "text", "only jobs with these names", short="N", aliases=("name",), metavar="LIST", many=True
    ),
    Option(
        "user",
        "text",
        "only jobs of these users; all: every user (default)",
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
    Option("target", "text", "only jobs on these targets: local, slurm", metavar="LIST", many=True),
    Option("partition", "text", "only jobs for these partitions", metavar="LIST", many=True),
    Option(
        "since",
        "text",
        "active jobs, and jobs that ended since this time: 2h, 14:00, today, 2026-12-24",
        metavar="TIME",
    ),
    Option(
        "sort",
        "text",
        "sort by id, state, time, name, gpus or priority; -time reverses the order",
        short="r",
        metavar="ORDER",
        choices=("id", "state", "time", "name", "gpus", "priority"),
    ),
    Option("limit", "count", "show the first N jobs; -N: the last N; 0: all", short="n", metavar="N"),
    Option("offset", "count", "skip the first N jobs", metavar="N", low=0),
    Option(
        "format",
        "text",
        "columns to show, such as 'JOBID,NAME,ST,NODES,NODELIST(REASON)'",
        short="f",
        metavar="COLS",
    ),
    Option("group", "flag", "one table for each state", short="g"),
    Option("tree", "flag", "show each job below the jobs it depends on", short="t"),
    Option(
        "output",
        "text",
        "output format: table, json, csv or yaml",
        short="o",
        metavar="FORM",
        choices=("table", "json", "csv", "yaml"),
    ),
    JSON,
    *WATCH,
    Option("tmux", "flag", "does nothing: there are no terminal sessions", short="T"),
    *COMMON,
)
