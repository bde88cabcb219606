"""Options of gcancel."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON, ME, Option

OPTIONS = (
    Option("now", "flag", "kill immediately, without the grace time"),
    Option(
        "signal",
        "text",
        "send this signal to the programs of running jobs instead of cancelling them: USR1, SIGUSR1, 10",
        metavar="SIG",
    ),
    Option("batch", "flag", "with --signal: only to the batch shell of a job, its first process", short="b"),
    Option("dry-run", "flag", "list the jobs and their dependents without cancelling them"),
    Option("all", "flag", "all your waiting and running jobs", short="a"),
    Option(
        "name",
        "text",
        "jobs with this name; * matches any text: exp-*",
        short="n",
        aliases=("names",),
        metavar="NAME",
        many=True,
    ),
    Option(
        "state",
        "text",
        "jobs in these states: Queued, R, …",
        short="s",
        aliases=("states", "t"),
        metavar="STATES",
        many=True,
    ),
    Option("project", "text", "jobs of this project", short="P", metavar="CODE", many=True),
    Option(
        "user",
        "text",
        "jobs of this user; all: of every user",
        short="u",
        aliases=("users",),
        metavar="USER",
        many=True,
    ),
    ME,
    Option("cancel", "flag", "does nothing: gcancel always cancels", aliases=("kill",)),
    JSON,
    *COMMON,
)
