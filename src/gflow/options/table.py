"""THE table of options. Parser, help, script directives and API schema derive from it.

An option is declared once, here. `field` names the attribute of `core.model.Spec`
that it fills; a test holds the two equal. `kind` names a reader in `options.values`.
"""

from __future__ import annotations


class Option:
    """One option: how it is spelled, what it takes, what it means."""

    __slots__ = ("aliases", "choices", "field", "help", "high", "kind", "low", "metavar", "name", "short")

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
        choices: tuple[str, ...] = (),
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
        # The words among which its value is chosen, for completion; () where there is no such list.
        self.choices = choices

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
        "shared",
        "flag",
        "share the GPUs with other shared jobs; needs --gpu-memory",
        field="shared",
    ),
    Option(
        "gpu-memory",
        "size",
        "memory needed on each GPU: 20G, 512M (a number alone is MB)",
        aliases=("max-gpu-mem", "max-gpu-memory"),
        metavar="SIZE",
        field="gpu_memory_mib",
        low=1,
    ),
    Option(
        "gpu-type",
        "name",
        "only GPUs whose model has this in its name: A100",
        metavar="TEXT",
        field="gpu_type",
    ),
    Option(
        "cpus",
        "count",
        "CPU slots (default 1 without GPUs, 0 with)",
        aliases=("cpus-per-task",),
        metavar="N",
        field="cpus",
        low=0,
        high=65536,
    ),
    Option(
        "memory",
        "size",
        "host memory: 16G, 1.5G, 512M (a number alone is MB)",
        short="m",
        aliases=("mem", "max-mem", "max-memory"),
        metavar="SIZE",
        field="memory_mib",
        low=1,
    ),
    Option(
        "allow-unsatisfiable",
        "flag",
        "queue the job even if this machine could never run it",
        field="allow_unsatisfiable",
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
        aliases=("dependency", "depends-on-all"),
        metavar="JOB",
        field="depends_on",
    ),
    Option(
        "depends-on-any",
        "depends",
        "start after one of these jobs succeeded",
        metavar="JOBS",
        field="depends_any",
    ),
    Option(
        "no-auto-cancel",
        "flag",
        "keep the job waiting when a job it depends on fails",
        field="no_auto_cancel",
    ),
    Option(
        "begin",
        "time",
        "not before: 20:00, 2026-12-24T08:00, now+2h (a number alone is minutes)",
        metavar="TIME",
        field="begin_at",
    ),
    Option(
        "hold",
        "flag",
        "submit held; gjob release lets it go",
        short="H",
        field="hold",
    ),
    Option(
        "array",
        "array",
        "many tasks of one job: 1-10, 0-90:10, 1,3,5-7; %4 at the end runs at most 4 at once",
        short="a",
        metavar="SPEC",
        field="array",
    ),
    Option(
        "max-concurrent",
        "count",
        "at most N of these jobs (or tasks) at once",
        metavar="N",
        field="max_concurrent",
        low=1,
        high=1_000_000,
    ),
    Option(
        "max-retries",
        "count",
        "try a failed job again up to N times",
        metavar="N",
        field="max_retries",
        low=0,
        high=1000,
    ),
    Option(
        "requeue",
        "flag",
        "queue the job again when its time is up, the machine restarted, or it leaves with code 75",
        field="requeue",
    ),
    Option(
        "grace",
        "seconds",
        "time between TERM and KILL when the job is stopped, in seconds or 1:30 (default 30)",
        metavar="S",
        field="grace_s",
        low=0,
    ),
    Option(
        "signal",
        "signal",
        "warn the job before its time is up: USR1@60 sends USR1 60 seconds before",
        metavar="SIG@S",
        field="warning",
    ),
    Option(
        "output",
        "path",
        "file for its output: %j job, %x name, %A array, %a task, %u user, %h host",
        short="o",
        metavar="FILE",
        field="output",
    ),
    Option(
        "error",
        "path",
        "file for its error output (default: with the output)",
        short="e",
        metavar="FILE",
        field="error",
    ),
    Option(
        "project",
        "name",
        "project the job belongs to",
        short="P",
        metavar="CODE",
        field="project",
        high=64,
    ),
)

# What of the submitter's world the job gets. Applied where the job is submitted, not stored.
CAPTURE = (
    Option("chdir", "path", "run in this folder (default: where you are)", short="D", metavar="DIR"),
    Option("export", "text", "environment to take along: ALL (default), NONE, or A,B=c", metavar="VARS"),
    Option("venv", "path", "activate this Python virtual environment", metavar="DIR"),
    Option("conda-env", "name", "activate this conda environment", short="c", metavar="NAME"),
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

GBATCH = JOB + CAPTURE + SUBMIT + COMMON
