"""The options of gqueue. Apart from the big table, so that gbatch need not load them."""

from __future__ import annotations

from gflow.options.table import COMMON, JSON, Option

GQUEUE = (
    Option("all", "flag", "finished jobs too", short="a"),
    Option("states", "text", "only these states: PD, Running, …", short="s", metavar="LIST"),
    Option("jobs", "text", "only these jobs", short="j", aliases=("job",), metavar="LIST"),
    Option("user", "text", "only these people's jobs", short="u", aliases=("users",), metavar="LIST"),
    Option(
        "format", "text", "columns, e.g. 'JOBID,NAME,ST,NODES,NODELIST(REASON)'", short="f", metavar="COLS"
    ),
    Option("limit", "count", "at most N, the newest; 0: all", short="n", metavar="N", low=0),
    JSON,
    *COMMON,
)
