"""Options of the commands of gjob. Those of update and redo derive from the job options: `options.update`."""

from __future__ import annotations

from gflow.options.job_options import Option

OPTIONS = {
    "show": (
        Option("metric", "text", "the metric that ranks the jobs of a group (default: loss)", metavar="NAME"),
        Option("highest", "flag", "the highest value of the metric is best, not the lowest"),
    ),
    "log": (
        Option("follow", "flag", "follow the output through all attempts until the job ends", short="f"),
        Option("first", "count", "only the first N lines", metavar="N", low=0),
        Option(
            "last",
            "count",
            "only the last N lines (default for several jobs: 20)",
            short="l",
            aliases=("tail", "n"),
            metavar="N",
            low=0,
        ),
        Option("failed", "flag", "only of those jobs that ended as Failed or Timeout"),
    ),
    "results": (
        Option(
            "sort",
            "text",
            "sort by a metric, a parameter, id, state, time or name; -loss reverses",
            short="r",
            metavar="ORDER",
            choices=("id", "state", "time", "name", "params", "loss"),
        ),
        Option("failed", "flag", "only jobs that ended as Failed or Timeout"),
        Option("states", "text", "only these states: Finished, F, …", short="s", metavar="LIST", many=True),
        Option("csv", "flag", "comma-separated values"),
        Option(
            "output",
            "text",
            "output format: table, csv or json",
            short="o",
            metavar="FORM",
            choices=("table", "csv", "json"),
        ),
    ),
    "exec": (Option("no-tty", "flag", "do not allocate a terminal for the command", short="T"),),
    "release": (Option("at", "time", "start not before this time", metavar="TIME"),),
    "wait": (
        Option("timeout", "seconds", "give up after this time, with exit code 124", metavar="TIME", low=1),
    ),
    "profile": (
        Option("steps", "count", "steps to record (default 5)", metavar="N", low=1, high=100),
        Option("memory", "flag", "also write a snapshot of the CUDA memory allocator"),
        Option(
            "output",
            "path",
            "copy the trace to this file; a name without .gz gets plain JSON",
            short="o",
            metavar="FILE",
        ),
        Option(
            "timeout",
            "seconds",
            "give up if the run ends no step in this time (default 2 minutes)",
            metavar="TIME",
            low=1,
        ),
    ),
    "fetch": (
        Option("to", "path", "folder for the files (default: the job's folder here)", metavar="FOLDER"),
        Option("overwrite", "flag", "also replace files that are newer here"),
    ),
    "usage": (Option("csv", "flag", "every sample, as comma-separated values"),),
    "close-sessions": (
        Option("jobs", "text", "does nothing", short="j", metavar="IDS"),
        Option("state", "text", "does nothing", short="s", aliases=("states",), metavar="STATES"),
        Option("pattern", "text", "does nothing", short="p", metavar="TEXT"),
        Option("all", "flag", "does nothing", short="a"),
    ),
}
# Short names of the commands.
ALIASES = {
    "a": "attach", "l": "log", "h": "hold", "r": "release", "s": "show", "u": "update",
    "close": "close-sessions",
}  # fmt: skip


def options_of(command: str) -> tuple[Option, ...]:
    """The options of one command of gjob, without those of every command."""
    if command in ("update", "redo"):
        from gflow.options.update import REDO, UPDATE

        return UPDATE if command == "update" else REDO
    return OPTIONS.get(command, ())
