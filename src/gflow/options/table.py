"""THE table of options. Parser, help, script directives and API schema derive from it.

An option is declared once, here. `field` names the attribute of `core.model.Spec`
that it fills; a test holds the two equal. `kind` names a reader in `options.values`.
"""

from __future__ import annotations


class Option:
    """One option: how it is spelled, what it takes, what it means."""

    __slots__ = ("aliases", "field", "help", "high", "kind", "low", "metavar", "name", "short")

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        *,
        short: str = "",
        aliases: tuple[str, ...] = (),
        metavar: str = "",
        field: str = "",
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.short = short
        self.aliases = aliases
        self.metavar = metavar
        self.field = field
        self.low = low
        self.high = high

    @property
    def is_flag(self) -> bool:
        return self.kind == "flag"


# What a job can ask for. Also `# GFLOW` directives and keys of the API.
JOB = (
    Option(
        "gpus",
        "count",
        "whole GPUs for the job alone (default 0)",
        short="g",
        aliases=("gres",),
        metavar="N",
        field="gpus",
        low=0,
        high=4096,
    ),
    Option(
        "time",
        "duration",
        "stop the job after this long: 30 (minutes), 5:30, 4:00:00, 1-02:00:00",
        short="t",
        aliases=("time-limit", "timelimit"),
        metavar="T",
        field="time_limit_s",
        low=1,
    ),
    Option(
        "name",
        "name",
        "name of the job (default job-<id>)",
        short="n",
        aliases=("job-name",),
        metavar="NAME",
        field="name",
    ),
    Option(
        "priority",
        "count",
        "0 to 255, higher starts sooner (default 10)",
        short="p",
        metavar="N",
        field="priority",
        low=0,
        high=255,
    ),
    Option(
        "depends-on",
        "depends",
        "start after this job succeeded: an id, @ (my latest), @~N (N before it); several with commas",
        short="d",
        aliases=("dependency",),
        metavar="JOB",
        field="depends_on",
    ),
)

# What every command understands.
COMMON = (
    Option("help", "flag", "show this help", short="h"),
    Option("version", "flag", "show the version"),
)
JSON = Option("json", "flag", "print one JSON object instead of text")

# What `gbatch` itself does around the submission; not part of the job.
SUBMIT = (
    Option("wait", "flag", "wait for the job and leave with its exit code"),
    Option("parsable", "flag", "print the id alone"),
    JSON,
)

GBATCH = JOB + SUBMIT + COMMON
