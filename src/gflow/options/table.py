"""The table of job options. Parser, help, script directives and API schema derive from it.

Each option is declared here and nowhere else. `field` names the attribute of `core.model.Spec`
that it fills; a test holds the two equal. `kind` names a reader in `options.values`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import Any, NoReturn

NAME_LENGTH = 200
SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18}


class Option:
    """One option: its names, the kind of its value, its bounds and its help text."""

    __slots__ = (
        "aliases", "choices", "field", "help", "high", "kind", "low", "many", "metavar", "name", "short",
    )  # fmt: skip

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
        many: bool = False,
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
        # Possible values, for completion; (): not an enumeration.
        self.choices = choices
        # May be repeated: the values (tuples, or text with commas) are concatenated.
        self.many = many

    @property
    def is_flag(self) -> bool:
        return self.kind == "flag" or (self.kind == "slurm" and not self.metavar)


def spellings(table: tuple[Option, ...]) -> dict[str, Option]:
    """Options by every spelling: `--gpus`, `--gres`, `-g`."""
    spelled: dict[str, Option] = {}
    for option in table:
        spelled["--" + option.name] = option
        for alias in option.aliases:
            spelled["-" * min(2, len(alias)) + alias] = option
        if option.short:
            spelled["-" + option.short] = option
    return spelled


def refuse(message: str, hint: str = "") -> NoReturn:
    """Raise a UsageError. Imported here, so that commands without errors do not load it."""
    from gflow.errors import UsageError

    raise UsageError(message, hint=hint)


def is_digits(text: str) -> bool:
    """Whether `text` is 1 to 18 ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def quote(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return ascii(text if len(text) <= 60 else text[:57] + "...")


# Options of a job. Also `# GFLOW` directives and keys of the API.
JOB = (
    Option(
        "gpus",
        "count",
        "number of whole, unshared GPUs (default 0)",
        short="g",
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
        "need",
        "memory needed on each GPU: 20G, 512M (a bare number is MB), or auto: taken from earlier runs",
        aliases=("max-gpu-mem", "max-gpu-memory", "gpu-memory-limit"),
        metavar="SIZE",
        field="gpu_memory_mib",
        low=1,
    ),
    Option(
        "fit",
        "prediction",
        "file with the prediction of gflow plan or gflow fit; --gpu-memory auto uses its value",
        metavar="FILE",
        field="predicted_mib",
    ),
    Option(
        "gpu-type",
        "name",
        "only GPUs whose model name contains this text: A100",
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
        "host memory: 16G, 1.5G, 512M (a bare number is MB)",
        short="m",
        aliases=("mem", "max-mem", "max-memory", "memory-limit"),
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
        "stop-if-idle",
        "duration",
        "stop the job when it has used none of its GPUs for this long: 30 (minutes), 4:00:00",
        metavar="T",
        field="stop_if_idle_s",
        low=1,
    ),
    Option(
        "pty",
        "flag",
        "run the job in a terminal, for grun and gjob attach",
        field="pty",
    ),
    Option(
        "preemptible",
        "flag",
        "allow the job to be stopped and requeued when a job of higher priority, or one that is not "
        "preemptible, needs its GPUs",
        field="preemptible",
    ),
    Option(
        "name",
        "name",
        "name of the job (default job-<id>); in a sweep a template such as 'run_{lr}'",
        short="n",
        aliases=("job-name", "name-template", "J"),
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
        "start after this job has succeeded: an id, @ (my latest), @~N (N before it); separate several "
        "by commas",
        short="d",
        aliases=("depends-on-all",),
        metavar="JOB",
        field="depends_on",
        many=True,
    ),
    Option(
        "depends-on-any",
        "depends",
        "start after one of these jobs has succeeded",
        metavar="JOBS",
        field="depends_any",
        many=True,
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
        "earliest start: 20:00, 2026-12-24T08:00, now+2h (a bare number is minutes)",
        metavar="TIME",
        field="begin_at",
    ),
    Option(
        "hold",
        "flag",
        "submit the job on hold; gjob release releases it",
        short="H",
        field="hold",
    ),
    Option(
        "array",
        "array",
        "run the job as an array of tasks: 1-10, 0-90:10, 1,3,5-7; append %4 to run at most 4 at once",
        short="a",
        metavar="SPEC",
        field="array",
    ),
    Option(
        "max-concurrent",
        "count",
        "run at most N of these jobs (or tasks) at once",
        metavar="N",
        field="max_concurrent",
        low=1,
        high=1_000_000,
    ),
    Option(
        "max-retries",
        "count",
        "retry a failed job up to N times",
        metavar="N",
        field="max_retries",
        low=0,
        high=1000,
    ),
    Option(
        "retry-on",
        "retry",
        "which failures are retried (with --max-retries): oom, timeout, exit:75, signal:9, lost, start, "
        "failed, any (default failed)",
        metavar="ENDS",
        field="retry_on",
        many=True,
    ),
    Option(
        "retry-delay",
        "seconds",
        "delay before the first retry in seconds or 1:30, doubled each time up to an hour (default 10)",
        metavar="S",
        field="retry_delay_s",
        low=0,
    ),
    Option(
        "requeue",
        "flag",
        "requeue the job when it reaches its time limit, the machine restarts, or it exits with code 75",
        field="requeue",
    ),
    Option(
        "resume-args",
        "text",
        "arguments added to the command from the second attempt on: '--ckpt_path {latest}'; "
        "{latest:DIR} looks in DIR",
        metavar="WORDS",
        field="resume_args",
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
        "send a signal before the time limit: USR1@60 sends USR1 60 seconds before it",
        metavar="SIG@S",
        field="warning",
    ),
    Option(
        "output",
        "path",
        "file for standard output: %j job, %x name, %A array, %a task, %u user, %h host",
        short="o",
        metavar="FILE",
        field="output",
    ),
    Option(
        "error",
        "path",
        "file for standard error (default: the same as --output)",
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
    Option(
        "comment",
        "name",
        "comment, shown by gjob show",
        metavar="TEXT",
        field="comment",
        high=1000,
    ),
    Option("venv", "path", "activate this Python virtual environment", metavar="DIR", field="venv"),
    Option(
        "conda-env",
        "path",
        "activate this conda environment (name or directory)",
        short="c",
        metavar="NAME",
        field="conda_env",
    ),
    Option(
        "notify-email",
        "emails",
        "email address to notify about the job; may be repeated (needs notifications.emails in gflow.toml)",
        metavar="ADDR",
        field="notify_emails",
        many=True,
    ),
    Option(
        "notify-on",
        "events",
        "events to notify about: job_started, job_failed, … (default: job_completed, _failed, _timeout, "
        "_cancelled)",
        metavar="EVENTS",
        field="notify_on",
        many=True,
    ),
    Option(
        "param",
        "params",
        "sweep parameter: lr=0.1,0.01 or seed=1:5 or x=0:1:0.25; may be repeated; {lr} in the command "
        "is replaced by the value",
        metavar="NAME=VALUES",
        field="parameters",
        many=True,
    ),
    Option(
        "effective-batch",
        "count",
        "samples per training step over all GPUs, the same in every shape (GFLOW_EFFECTIVE_BATCH)",
        metavar="B",
        field="effective_batch",
        low=1,
        high=1 << 40,
    ),
    Option(
        "on",
        "target",
        "where the job runs: local, slurm, or a target of gflow.toml (default: the setting "
        "default_target, else local)",
        metavar="TARGET",
        field="on",
    ),
    Option(
        "overflow",
        "target",
        "cluster to which the job goes if it cannot start here soon enough: slurm, or a target of gflow.toml",
        metavar="TARGET",
        field="overflow",
    ),
    Option(
        "overflow-after",
        "duration",
        "longest acceptable wait here before --overflow: 30 (minutes) or 1:00:00 (default: the target's "
        "overflow_after_secs, 600)",
        metavar="TIME",
        field="overflow_after_s",
        low=0,
    ),
    Option(
        "nodes",
        "count",
        "number of cluster nodes, each with --gpus GPUs and --cpus CPUs (default 1)",
        metavar="N",
        field="nodes",
        low=1,
        high=65536,
    ),
    Option(
        "shape",
        "shape",
        "nodes and GPUs per node: n4_gpu1 is --nodes 4 --gpus 1; or the name of a shape in gflow.toml, "
        "[shapes.NAME]",
        metavar="SHAPE",
        field="shape_name",
    ),
    Option(
        "partition", "name", "Slurm partition; separate several by commas", metavar="NAME", field="partition"
    ),
    Option("qos", "name", "Slurm quality of service", metavar="NAME", field="qos"),
    Option(
        "constraint", "name", "features that the Slurm nodes must have", metavar="LIST", field="constraint"
    ),
    Option("reservation", "name", "Slurm reservation", metavar="NAME", field="reservation"),
    Option("exclusive", "flag", "use whole cluster nodes, not shared with other jobs", field="exclusive"),
    Option(
        "race",
        "shapes",
        "shapes to try at once, on Slurm or here; the job runs in the first that can start: "
        "local:n1_gpu2,n4_gpu1",
        metavar="SHAPES",
        field="race",
        many=True,
    ),
    Option(
        "slurm",
        "sbatch",
        "pass an option that gflow does not have to sbatch: --slurm=--licenses=matlab; may be repeated",
        metavar="OPTION",
        field="slurm",
        many=True,
    ),
)

PARAM_FILE = Option(
    "param-file", "path", "sweep from a CSV file: a header, then one job per row", metavar="CSV"
)

# What the job inherits from the submitting process. Applied by the client, not stored.
CAPTURE = (
    Option("chdir", "path", "run in this directory (default: the current one)", short="D", metavar="DIR"),
    Option("export", "text", "environment to pass to the job: ALL (default), NONE, or A,B=c", metavar="VARS"),
    Option(
        "config",
        "path",
        "configuration file of the job (YAML, TOML, JSON), exported as GFLOW_CONFIG; options are read "
        "from its key gflow",
        metavar="FILE",
    ),
    PARAM_FILE,
)

# Options of every command.
COMMON = (
    Option("help", "flag", "show this help", short="h"),
    Option("version", "flag", "show the version"),
)
JSON = Option("json", "flag", "print one JSON object instead of text")
PARSABLE = Option("parsable", "flag", "print only the job id")
WATCH = (
    Option("watch", "flag", "refresh the output until Ctrl-C", short="w"),
    Option("interval", "seconds", "with --watch: seconds between refreshes (default 2)", metavar="S", low=1),
)

# Options of `gbatch` itself; not part of the job.
SUBMIT = (
    Option("wait", "flag", "wait for the job and exit with its exit code"),
    PARSABLE,
    Option("dry-run", "flag", "print what would be submitted without submitting it"),
    Option("auto-close", "flag", "does nothing: there are no terminal sessions to close"),
    JSON,
)

# Slurm options, which `options.slurm` translates to those above.
SLURM = (
    Option("nice", "slurm", "Slurm: lower the priority by N, to 10 - N", metavar="N"),
    Option("gres", "slurm", "Slurm: GPUs, as gpu:2 or gpu:a100:2", metavar="GRES"),
    Option("gpus-per-node", "slurm", "Slurm: GPUs, as 2 or a100:2", metavar="N"),
    Option("gpus-per-task", "slurm", "Slurm: GPUs, as 2 or a100:2", metavar="N"),
    Option("dependency", "slurm", "Slurm: afterok:17:18, or ids as in --depends-on", metavar="LIST"),
    Option("mail-user", "slurm", "Slurm: same as --notify-email", metavar="ADDR"),
    Option("mail-type", "slurm", "Slurm: as --notify-on: BEGIN, END, FAIL, TIME_LIMIT, ALL", metavar="TYPES"),
    Option("account", "slurm", "Slurm: same as --project", short="A", metavar="CODE"),
)

GBATCH = JOB + CAPTURE + SUBMIT + SLURM + COMMON
