"""Options of `gjob update` and `gjob redo`: those of the table, and `--clear-…` to reset each."""

from __future__ import annotations

from gflow.options.job_options import JOB, PARSABLE, Option

# Not changeable: usage is accounted to the project; the tasks of an array exist already; hold has its own
# command; a job stays on its target. A redone job is a new job: it may be held and may run elsewhere.
FIXED_IN_REDO = frozenset({option.name for option in JOB if option.changes == "never"})
FIXED = FIXED_IN_REDO | {option.name for option in JOB if option.changes == "redo"}


def _copy(
    option: Option, *, kind: str = "", short: str | None = None, alias: str = "", help: str = ""
) -> Option:
    return Option(
        option.name,
        kind or option.kind,
        help or option.help,
        short=option.short if short is None else short,
        aliases=option.aliases + ((alias,) if alias else ()),
        metavar=option.metavar,
        field=option.field,
        low=option.low,
        high=option.high,
        many=option.many,
    )


def _changeable(option: Option) -> Option:
    if option.name == "time":  # +2h extends the current limit
        return _copy(
            option,
            kind="change",
            help="new time limit: 4h or 30 (minutes); +2h or +30 extends the present one",
        )
    if option.name == "param":
        return _copy(option, help="new value for a sweep parameter: lr=0.1; may be repeated")
    if option.name == "cpus":
        return _copy(option, alias="cpus-per-task")
    if option.name == "conda-env":
        return _copy(option, short="e")
    if option.name == "no-auto-cancel":
        return _copy(option, alias="no-auto-cancel-on-dep-failure")
    return _copy(option, short="") if option.name in ("error", "name") else option


def _clearing(option: Option) -> Option:
    aliases = tuple("clear-" + alias for alias in option.aliases if len(alias) > 1)
    return Option("clear-" + option.name, "flag", f"reset --{option.name} to its default", aliases=aliases)


CHANGEABLE = tuple(_changeable(option) for option in JOB if option.name not in FIXED)
CLEARING = tuple(_clearing(option) for option in JOB if option.name not in FIXED | {"param"})
CLEAR_DEPS = Option("clear-deps", "flag", "remove all dependencies")
UPDATE = (
    *CHANGEABLE,
    Option("command", "text", "new command", short="c", metavar="CMD"),
    Option("script", "path", "new script", short="s", metavar="FILE"),
    Option("auto-cancel-on-dep-failure", "flag", "cancel the job when a job it depends on fails"),
    CLEAR_DEPS,
    *CLEARING,
)
REDOABLE = tuple(_changeable(option) for option in JOB if option.name not in FIXED_IN_REDO)
REDO = (
    *REDOABLE,
    CLEAR_DEPS,
    Option("failed", "flag", "only those of the jobs that ended as Failed or Timeout"),
    Option("cascade", "flag", "also redo the jobs that were cancelled because it failed"),
    PARSABLE,
)
