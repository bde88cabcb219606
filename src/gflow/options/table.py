"""THE table of options. Parser, help, script directives and API schema derive from it.

An option is declared once, here. `field` names the attribute of `core.model.Spec`
that it fills; a test holds the two equal. `kind` names a reader in `options.values`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import Any, NoReturn

NAME_LENGTH = 200
SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18}


class Option:
    """One option: how it is spelled, what it takes, what it means."""

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
        # The words among which its value is chosen, for completion; () where there is no such list.
        self.choices = choices
        # May be given several times; its values, which are tuples or lists with commas, add up.
        self.many = many

    @property
    def is_flag(self) -> bool:
        return self.kind == "flag" or (self.kind == "slurm" and not self.metavar)


def spellings(table: tuple[Option, ...]) -> dict[str, Option]:
    """Every way to write every option: `--gpus`, `--gres`, `-g`."""
    spelled: dict[str, Option] = {}
    for option in table:
        spelled["--" + option.name] = option
        for alias in option.aliases:
            spelled["-" * min(2, len(alias)) + alias] = option
        if option.short:
            spelled["-" + option.short] = option
    return spelled


def refuse(message: str, hint: str = "") -> NoReturn:
    """Raise the usage error. Imported here: the happy path must not pay for it."""
    from gflow.errors import UsageError

    raise UsageError(message, hint=hint)


def is_digits(text: str) -> bool:
    """ASCII digits only, and few enough to be a number somebody meant."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def quote(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return ascii(text if len(text) <= 60 else text[:57] + "...")


# What a job can ask for. Also `# GFLOW` directives and keys of the API.
JOB = (
    Option(
        "gpus",
        "count",
        "whole GPUs for the job alone (default 0)",
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
        "memory needed on each GPU: 20G, 512M (a number alone is MB), or auto: what earlier runs used",
        aliases=("max-gpu-mem", "max-gpu-memory", "gpu-memory-limit"),
        metavar="SIZE",
        field="gpu_memory_mib",
        low=1,
    ),
    Option(
        "fit",
        "prediction",
        "what gflow plan or gflow fit predicted; with --gpu-memory auto this is the job's need",
        metavar="FILE",
        field="predicted_mib",
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
        "give the job a terminal; grun sits down at it, gjob attach reaches it",
        field="pty",
    ),
    Option(
        "preemptible",
        "flag",
        "make way: be stopped and queued again when a job of higher priority, or one not preemptible, "
        "needs the GPUs",
        field="preemptible",
    ),
    Option(
        "name",
        "name",
        "name of the job (default job-<id>); in a sweep 'run_{lr}' names each",
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
        "start after this job succeeded: an id, @ (my latest), @~N (N before it); several with commas",
        short="d",
        aliases=("depends-on-all",),
        metavar="JOB",
        field="depends_on",
        many=True,
    ),
    Option(
        "depends-on-any",
        "depends",
        "start after one of these jobs succeeded",
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
        "retry-on",
        "retry",
        "ends after which --max-retries counts: oom, timeout, exit:75, signal:9, lost, start, failed, any "
        "(default failed)",
        metavar="ENDS",
        field="retry_on",
        many=True,
    ),
    Option(
        "retry-delay",
        "seconds",
        "pause before the first retry in seconds or 1:30, doubled each time up to an hour (default 10)",
        metavar="S",
        field="retry_delay_s",
        low=0,
    ),
    Option(
        "requeue",
        "flag",
        "queue the job again when its time is up, the machine restarted, or it leaves with code 75",
        field="requeue",
    ),
    Option(
        "resume-args",
        "text",
        "words for the command of further attempts: '--ckpt_path {latest}'; {latest:DIR} looks in DIR",
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
    Option(
        "comment",
        "name",
        "a note for people, shown by gjob show",
        metavar="TEXT",
        field="comment",
        high=1000,
    ),
    Option("venv", "path", "activate this Python virtual environment", metavar="DIR", field="venv"),
    Option(
        "conda-env",
        "path",
        "activate this conda environment, by name or folder",
        short="c",
        metavar="NAME",
        field="conda_env",
    ),
    Option(
        "notify-email",
        "emails",
        "whom to write to about the job; may be repeated (needs notifications.emails in gflow.toml)",
        metavar="ADDR",
        field="notify_emails",
        many=True,
    ),
    Option(
        "notify-on",
        "events",
        "about what: job_started, job_failed, … (default: job_completed, _failed, _timeout, _cancelled)",
        metavar="EVENTS",
        field="notify_on",
        many=True,
    ),
    Option(
        "param",
        "params",
        "a sweep: lr=0.1,0.01 or seed=1:5 or x=0:1:0.25; may be repeated; {lr} in the command gets the value",
        metavar="NAME=VALUES",
        field="parameters",
        many=True,
    ),
    Option(
        "effective-batch",
        "count",
        "samples of a training step over all GPUs, the same in every shape (GFLOW_EFFECTIVE_BATCH)",
        metavar="B",
        field="effective_batch",
        low=1,
        high=1 << 40,
    ),
    Option(
        "on",
        "target",
        "where it runs: local, slurm, or a target of gflow.toml (default: default_target there, else local)",
        metavar="TARGET",
        field="on",
    ),
    Option(
        "overflow",
        "target",
        "a cluster that gets the job if it cannot start here soon enough: slurm, or a target of gflow.toml",
        metavar="TARGET",
        field="overflow",
    ),
    Option(
        "overflow-after",
        "duration",
        "how soon is soon enough: 30 (minutes) or 1:00:00 (default: the target's overflow_after_secs, 600)",
        metavar="TIME",
        field="overflow_after_s",
        low=0,
    ),
    Option(
        "nodes",
        "count",
        "nodes of a cluster, each with --gpus GPUs and --cpus CPUs (default 1)",
        metavar="N",
        field="nodes",
        low=1,
        high=65536,
    ),
    Option(
        "shape",
        "shape",
        "nodes and GPUs in a word: n4_gpu1 is --nodes 4 --gpus 1; or a shape of gflow.toml, [shapes.NAME]",
        metavar="SHAPE",
        field="shape_name",
    ),
    Option("partition", "name", "Slurm's partition, several with commas", metavar="NAME", field="partition"),
    Option("qos", "name", "Slurm's quality of service", metavar="NAME", field="qos"),
    Option("constraint", "name", "features that Slurm's nodes must have", metavar="LIST", field="constraint"),
    Option("reservation", "name", "one of Slurm's reservations", metavar="NAME", field="reservation"),
    Option("exclusive", "flag", "whole nodes of a cluster, for this job alone", field="exclusive"),
    Option(
        "race",
        "shapes",
        "shapes of which the first that starts on Slurm, or here, runs the job: local:n1_gpu2,n4_gpu1",
        metavar="SHAPES",
        field="race",
        many=True,
    ),
    Option(
        "slurm",
        "sbatch",
        "an option for sbatch that gflow does not know: --slurm=--licenses=matlab; may be repeated",
        metavar="OPTION",
        field="slurm",
        many=True,
    ),
)

PARAM_FILE = Option(
    "param-file", "path", "a sweep from a CSV file: a header, then one job a row", metavar="CSV"
)

# What of the submitter's world the job gets. Applied where the job is submitted, not stored.
CAPTURE = (
    Option("chdir", "path", "run in this folder (default: where you are)", short="D", metavar="DIR"),
    Option("export", "text", "environment to take along: ALL (default), NONE, or A,B=c", metavar="VARS"),
    Option(
        "config",
        "path",
        "the job's own file (YAML, TOML, JSON), exported as GFLOW_CONFIG; options below its key gflow count",
        metavar="FILE",
    ),
    PARAM_FILE,
)

# What every command understands.
COMMON = (
    Option("help", "flag", "show this help", short="h"),
    Option("version", "flag", "show the version"),
)
JSON = Option("json", "flag", "print one JSON object instead of text")
PARSABLE = Option("parsable", "flag", "print the id alone")
WATCH = (
    Option("watch", "flag", "show it again and again, until Ctrl-C", short="w"),
    Option("interval", "seconds", "watch: seconds between two looks (default 2)", metavar="S", low=1),
)

# What `gbatch` itself does around the submission; not part of the job.
SUBMIT = (
    Option("wait", "flag", "wait for the job and leave with its exit code"),
    PARSABLE,
    Option("dry-run", "flag", "say what would be submitted, and submit nothing"),
    Option("auto-close", "flag", "does nothing: there are no terminal sessions to close"),
    JSON,
)

# Slurm's spellings, translated into the options above by `options.slurm`.
SLURM = (
    Option("nice", "slurm", "Slurm's: higher starts later; priority 10 less N", metavar="N"),
    Option("gres", "slurm", "Slurm's: gpu:2 or gpu:a100:2", metavar="GRES"),
    Option("gpus-per-node", "slurm", "Slurm's: 2 or a100:2", metavar="N"),
    Option("gpus-per-task", "slurm", "Slurm's: 2 or a100:2", metavar="N"),
    Option("dependency", "slurm", "Slurm's: afterok:17:18, or ids as --depends-on", metavar="LIST"),
    Option("mail-user", "slurm", "Slurm's --notify-email", metavar="ADDR"),
    Option("mail-type", "slurm", "Slurm's --notify-on: BEGIN, END, FAIL, TIME_LIMIT, ALL", metavar="TYPES"),
    Option("account", "slurm", "Slurm's --project", short="A", metavar="CODE"),
)

GBATCH = JOB + CAPTURE + SUBMIT + SLURM + COMMON
