"""The table of job options. Parser, help, script directives, API schema and rules derive from it.

Each option is declared here and nowhere else, under the heading that `gbatch --help` shows it. `field` names
the attribute of `core.model.Spec` that it fills; a test holds the two equal. `kind` names a reader in
`options.values`. `options.rules` and `options.update` derive what the engine and `gjob update` need.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import Any, Literal, NoReturn

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


class JobOption(Option):
    """An option that is stored with the job. A row without one of the required facts raises TypeError."""

    __slots__ = (
        "because", "changed_by", "changes", "excludes", "in_shapes", "only_on", "requires", "seen_by",
        "shown",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        *,
        field: str,
        shown: str,
        seen_by: Literal["all", "owner"],
        changes: Literal["never", "redo", "waiting", "running", "remote"],
        changed_by: Literal["owner", "operators"],
        requires: tuple[str, ...] = (),
        excludes: tuple[str, ...] = (),
        because: str = "",
        only_on: Literal["", "here", "cluster"] = "",
        in_shapes: bool = False,
        short: str = "",
        aliases: tuple[str, ...] = (),
        metavar: str = "",
        low: int | None = None,
        high: int | None = None,
        many: bool = False,
    ) -> None:
        # As in Option, without the cost of a second call for each row: every gbatch makes them.
        self.name = name
        self.kind = kind
        self.help = help
        self.short = short
        self.aliases = aliases
        self.metavar = metavar
        self.field = field
        self.low = low
        self.high = high
        self.choices = ()
        self.many = many
        # Its line of `gjob show`, `{}` is the value; a label alone: a line that text/job_page.py composes.
        self.shown = shown
        # Whether other users see it, where they see the job.
        self.seen_by = seen_by
        # The last phase in which it may change: never after the submission, in a redone job, while the job
        # waits, while it runs here, or also while another target has it.
        self.changes = changes
        # Whether operators may change it of jobs of other users.
        self.changed_by = changed_by
        # Options without which it is refused ("a or b": one of them), and with which it is refused; the hint.
        self.requires = requires
        self.excludes = excludes
        self.because = because
        # Where it has an effect; empty: on this machine and on clusters.
        self.only_on = only_on
        # Whether [shapes.NAME] of gflow.toml may set it.
        self.in_shapes = in_shapes


_SPELLINGS: dict[tuple[Option, ...], dict[str, Option]] = {}


def spellings(table: tuple[Option, ...]) -> dict[str, Option]:
    """Options by every spelling: `--gpus`, `--gres`, `-g`. Kept, for the daemon parses many command lines."""
    spelled = _SPELLINGS.setdefault(table, {})
    for option in () if spelled else table:
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


# Options of every command.
COMMON = (
    Option("help", "flag", "show this help", short="h"),
    Option("version", "flag", "show the version"),
)
JSON = Option("json", "flag", "print one JSON object instead of text")
PARSABLE = Option("parsable", "flag", "print only the job id")
ME = Option("me", "flag", "only your jobs")
WATCH = (
    Option("watch", "flag", "refresh the output until Ctrl-C", short="w"),
    Option("interval", "seconds", "with --watch: seconds between refreshes (default 2)", metavar="S", low=1),
)

# What the job inherits from the submitting process. Applied by the client, not stored.
CHDIR = Option("chdir", "path", "run in this directory (default: the current one)", short="D", metavar="DIR")
EXPORT = Option(
    "export", "text", "environment to pass to the job: ALL (default), NONE, or A,B=c", metavar="VARS"
)
CONFIG = Option(
    "config",
    "path",
    "configuration file of the job (YAML, TOML, JSON), exported as GFLOW_CONFIG; options are read "
    "from its key gflow",
    metavar="FILE",
)
PARAM_FILE = Option(
    "param-file", "path", "sweep from a CSV file: a header, then one job per row", metavar="CSV"
)
CAPTURE = (CHDIR, EXPORT, CONFIG, PARAM_FILE)

# Options of `gbatch` itself; not part of the job.
SUBMIT = (
    Option("wait", "flag", "wait for the job and exit with its exit code", short="W"),
    PARSABLE,
    Option("quiet", "flag", "print nothing about the submission", short="Q"),
    JSON,
    Option("dry-run", "flag", "print what would be submitted without submitting it"),
    Option("auto-close", "flag", "does nothing: there are no terminal sessions to close"),
)

# Slurm options, which `options.slurm` translates to those of the job.
SLURM = (
    Option("nice", "slurm", "Slurm: lower the priority by N, to 10 - N", metavar="N"),
    Option("gres", "slurm", "Slurm: GPUs, as gpu:2 or gpu:a100:2", metavar="GRES"),
    Option("gpus-per-node", "slurm", "Slurm: GPUs, as 2 or a100:2", metavar="N"),
    Option("ntasks", "count", "Slurm: processes that srun starts in the job", metavar="N", low=1, high=65536),
    Option("cpus-per-task", "count", "Slurm: CPU slots of each task", metavar="N", low=0, high=65536),
    Option("cpus-per-gpu", "count", "Slurm: CPU slots for each GPU", metavar="N", low=1, high=65536),
    Option("mem-per-cpu", "size", "Slurm: host memory for each CPU slot", metavar="SIZE", low=1),
    Option("mem-per-gpu", "size", "Slurm: host memory for each GPU", metavar="SIZE", low=1),
    Option(
        "dependency",
        "slurm",
        "Slurm: afterok:17:18, afterany:…, afternotok:…, after:…, singleton, separated by commas",
        metavar="LIST",
    ),
    Option("mail-user", "slurm", "Slurm: same as --notify-email", metavar="ADDR"),
    Option("mail-type", "slurm", "Slurm: as --notify-on: BEGIN, END, FAIL, TIME_LIMIT, ALL", metavar="TYPES"),
    Option("account", "slurm", "Slurm: same as --project", short="A", metavar="CODE"),
    Option("wrap", "text", "Slurm: a shell command line to run as a script", metavar="LINE"),
    Option("no-requeue", "slurm", "Slurm: without --requeue, also if the script asks for it"),
    Option("open-mode", "slurm", "Slurm: does nothing: output is appended", metavar="MODE"),
    Option("test-only", "flag", "Slurm: check the job and print when it would start; submit nothing"),
)

# Slurm's quantities for each task, CPU or GPU. `options.slurm.multiply` makes totals of them.
PER_UNIT = ("ntasks", "cpus-per-task", "cpus-per-gpu", "mem-per-cpu", "mem-per-gpu")
# Quantities that a cluster gets as they are written.
AS_WRITTEN = (*PER_UNIT, "ntasks-per-node", "gpus-per-task")

# All options of gbatch by heading, in the order of `gbatch --help` and `gjob show`. Those of a job are also
# `# GFLOW` directives and keys of the API.
# fmt: off
HEADINGS: dict[str, tuple[Option, ...]] = {
    "resources": (
        JobOption("gpus", "count", "number of whole, unshared GPUs (default 0)",
            field="gpus", short="g", aliases=("G",), metavar="N", low=0, high=4096, in_shapes=True,
            shown="GPUs", seen_by="all", changes="waiting", changed_by="operators"),
        JobOption("gpu-memory", "need",
            "memory needed on each GPU: 20G, 512M (a bare number is MB), or auto: taken from earlier runs",
            field="gpu_memory_mib", aliases=("max-gpu-mem", "max-gpu-memory", "gpu-memory-limit"),
            metavar="SIZE", low=1, in_shapes=True,
            shown="GPU memory", seen_by="all", changes="waiting", changed_by="operators"),
        JobOption("fit", "prediction",
            "file with the prediction of gflow plan or gflow fit; --gpu-memory auto uses its value",
            field="predicted_mib", metavar="FILE",
            requires=("gpus",), because="it is about the memory of a job's GPUs",
            shown="Predicted", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("gpu-type", "name", "only GPUs whose model name contains this text: A100",
            field="gpu_type", metavar="TEXT", in_shapes=True,
            shown="GPU type: {}", seen_by="all", changes="waiting", changed_by="operators"),
        JobOption("shared", "flag", "share the GPUs with other shared jobs; needs --gpu-memory",
            field="shared", only_on="here",
            requires=("gpus", "gpu-memory"), because="--gpus 1 --shared --gpu-memory 20G",
            shown="GPUs", seen_by="all", changes="waiting", changed_by="operators"),
        JobOption("cpus", "count", "CPU slots (default 1 without GPUs, 0 with)",
            field="cpus", metavar="N", low=0, high=65536, in_shapes=True,
            shown="CPUs: {}", seen_by="all", changes="waiting", changed_by="operators"),
        JobOption("ntasks-per-node", "count", "Slurm: processes that srun starts in the job (on each node)",
            field="ntasks_per_node", metavar="N", low=1, high=4096,
            shown="Slurm tasks: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("gpus-per-task", "count", "Slurm: GPUs of each process that srun starts",
            field="gpus_per_task", metavar="N", low=1, high=4096,
            shown="GPUs per task: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("memory", "size", "host memory: 16G, 1.5G, 512M (a bare number is MB)",
            field="memory_mib", short="m", aliases=("mem", "max-mem", "max-memory", "memory-limit"),
            metavar="SIZE", low=1, in_shapes=True,
            shown="Memory: {}", seen_by="all", changes="waiting", changed_by="operators"),
        JobOption("time", "duration",
            "stop the job after this long: 2h, 1h30m, 30 (minutes), 4:00:00, 1-02:00:00; 0: no limit",
            field="time_limit_s", short="t", aliases=("time-limit", "timelimit"),
            metavar="T", low=0, in_shapes=True,
            shown="Time limit: {}", seen_by="all", changes="running", changed_by="operators"),
        JobOption("stop-if-idle", "duration",
            "stop the job when it has used none of its GPUs for this long: 2h or 30 (minutes)",
            field="stop_if_idle_s", metavar="T", low=1,
            requires=("gpus",), because="it is about GPUs that a job has and does not use",
            shown="Stop if idle for: {}", seen_by="owner", changes="running", changed_by="owner"),
        JobOption("allow-unsatisfiable", "flag", "queue the job even if this machine could never run it",
            field="allow_unsatisfiable",
            shown="Allow unsatisfiable: yes", seen_by="owner", changes="waiting", changed_by="operators"),
    ),
    "on a cluster": (
        JobOption("on", "target",
            "where the job runs: local, slurm, or a target of gflow.toml (default: the setting "
            "default_target, else local)",
            field="on", metavar="TARGET", in_shapes=True,
            shown="Target", seen_by="owner", changes="redo", changed_by="owner"),
        JobOption("overflow", "target",
            "cluster to which the job goes if it cannot start here soon enough: slurm, or a target of "
            "gflow.toml",
            field="overflow", metavar="TARGET",
            excludes=("on", "array", "nodes", "race"),
            because="it is for single jobs that begin to wait here, on one node; --param makes single jobs",
            shown="Overflow", seen_by="owner", changes="redo", changed_by="owner"),
        JobOption("overflow-after", "duration",
            "longest acceptable wait here before --overflow: 1h or 30 (minutes) (default: the target's "
            "overflow_after_secs, 600)",
            field="overflow_after_s", metavar="TIME", low=0,
            requires=("overflow",), because="--overflow slurm --overflow-after 30",
            shown="Overflow", seen_by="owner", changes="redo", changed_by="owner"),
        JobOption("nodes", "count",
            "number of cluster nodes, each with --gpus GPUs and --cpus CPUs (default 1)",
            field="nodes", short="N", metavar="N", low=1, high=65536, only_on="cluster", in_shapes=True,
            shown="Nodes", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("shape", "shape",
            "nodes and GPUs per node: n4_gpu1 is --nodes 4 --gpus 1; or the name of a shape in gflow.toml, "
            "[shapes.NAME]",
            field="shape_name", metavar="SHAPE",
            shown="Shape: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("partition", "name", "Slurm partition; separate several by commas",
            field="partition", metavar="NAME", only_on="cluster", in_shapes=True,
            shown="Partition: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("qos", "name", "Slurm quality of service",
            field="qos", metavar="NAME", only_on="cluster", in_shapes=True,
            shown="QoS: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("constraint", "name", "features that the Slurm nodes must have",
            field="constraint", metavar="LIST", only_on="cluster", in_shapes=True,
            shown="Constraint: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("reservation", "name", "Slurm reservation",
            field="reservation", metavar="NAME", only_on="cluster", in_shapes=True,
            shown="Reservation: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("exclusive", "flag", "use whole cluster nodes, not shared with other jobs",
            field="exclusive", only_on="cluster", in_shapes=True,
            shown="Whole nodes: yes", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("container", "name",
            "image in which the command runs, by apptainer: image.sif, a folder, docker://…; none",
            field="container", metavar="IMAGE", high=1024,
            shown="Container: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("race", "shapes",
            "shapes to try at once, on Slurm or here; the job runs in the first that can start: "
            "local:n1_gpu2,n4_gpu1",
            field="race", metavar="SHAPES", many=True, only_on="cluster",
            shown="Race: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("effective-batch", "count",
            "samples per optimizer step over all GPUs, in any shape of the job (GFLOW_EFFECTIVE_BATCH)",
            field="effective_batch", metavar="B", low=1, high=1 << 40,
            shown="Effective batch: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("slurm", "sbatch",
            "pass an option that gflow does not have to sbatch: --slurm=--licenses=matlab; may be repeated",
            field="slurm", metavar="OPTION", many=True, only_on="cluster", in_shapes=True,
            shown="sbatch options: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("sync", "path",
            "folder whose files the cluster gets as they are now; the job runs in that copy (default: the "
            "target's sync)",
            field="sync", metavar="FOLDER", only_on="cluster",
            shown="Files sent: {}", seen_by="owner", changes="redo", changed_by="owner"),
        JobOption("no-sync", "flag", "send no files to the cluster",
            field="no_sync", only_on="cluster",
            excludes=("sync",), because="--sync FOLDER sends files",
            shown="Files sent: none", seen_by="owner", changes="redo", changed_by="owner"),
        JobOption("sync-size", "size",
            "most that one submission may send: 2G (default: the target's sync_limit, 200M)",
            field="sync_size_mib", metavar="SIZE", low=1, only_on="cluster",
            shown="Sent at most: {}", seen_by="owner", changes="redo", changed_by="owner"),
        JobOption("outputs", "patterns",
            "files to fetch from the cluster when the job ends: 'runs/**'; separate several by commas "
            "(default: the target's outputs)",
            field="outputs", metavar="PATTERNS", many=True, only_on="cluster",
            shown="Outputs: {}", seen_by="owner", changes="waiting", changed_by="owner"),
    ),
    "labels": (
        JobOption("name", "name",
            "name of the job (default: its script or program); in a sweep a template such as 'run_{lr}'",
            field="name", short="n", aliases=("job-name", "name-template", "J"), metavar="NAME",
            shown="Name", seen_by="all", changes="waiting", changed_by="owner"),
        JobOption("project", "name", "project the job belongs to",
            field="project", short="P", metavar="CODE", high=64,
            shown="Project: {}", seen_by="all", changes="never", changed_by="owner"),
        JobOption("comment", "name", "comment, shown by gjob show",
            field="comment", metavar="TEXT", high=1000,
            shown="Comment: {}", seen_by="owner", changes="remote", changed_by="owner"),
    ),
    "start": (
        JobOption("depends-on", "depends",
            "start after this job has succeeded: an id, g116 (all jobs of a group), @ (my latest), @~N (N "
            "before it); separate several by commas",
            field="depends_on", short="d", aliases=("depends-on-all",), metavar="JOB", many=True,
            shown="Depends on: {}", seen_by="all", changes="waiting", changed_by="owner"),
        JobOption("depends-on-any", "depends", "start after one of these jobs has succeeded",
            field="depends_any", metavar="JOBS", many=True,
            shown="Depends on any of: {}", seen_by="all", changes="waiting", changed_by="owner"),
        JobOption("depends-on-end", "depends", "start after these jobs have ended, in any way (afterany)",
            field="depends_end", metavar="JOBS", many=True,
            shown="Depends on the end of: {}", seen_by="all", changes="waiting", changed_by="owner"),
        JobOption("depends-on-failure", "depends",
            "start after these jobs have failed: ended in any way but success (afternotok)",
            field="depends_failure", metavar="JOBS", many=True,
            shown="Depends on the failure of: {}", seen_by="all", changes="waiting", changed_by="owner"),
        JobOption("depends-on-start", "depends", "start after these jobs have started or ended (after)",
            field="depends_start", metavar="JOBS", many=True,
            shown="Depends on the start of: {}", seen_by="all", changes="waiting", changed_by="owner"),
        JobOption("singleton", "flag", "start after your earlier jobs of the same name have ended",
            field="singleton",
            shown="Singleton", seen_by="all", changes="redo", changed_by="owner"),
        JobOption("no-auto-cancel", "flag", "keep the job waiting when a job it depends on fails",
            field="no_auto_cancel",
            shown="If a dependency fails: keeps waiting",
            seen_by="all", changes="waiting", changed_by="owner"),
        JobOption("begin", "time",
            "earliest start: 20:00, 2026-12-24T08:00, now+2h; 10 is in ten minutes",
            field="begin_at", metavar="TIME",
            shown="Not before", seen_by="all", changes="waiting", changed_by="operators"),
        JobOption("hold", "flag", "submit the job on hold; gjob release releases it",
            field="hold", short="H",
            shown="Held at submission: yes", seen_by="all", changes="redo", changed_by="owner"),
        JobOption("priority", "count", "0 to 255, higher starts sooner (default 10)",
            field="priority", short="p", metavar="N", low=0, high=255,
            shown="Priority", seen_by="all", changes="remote", changed_by="operators"),
        JobOption("preemptible", "flag",
            "allow the job to be stopped and requeued when a job of higher priority, or one that is not "
            "preemptible, needs its GPUs",
            field="preemptible",
            requires=("gpus",), excludes=("shared",), because="it is about GPUs that others may need",
            shown="Preemptible: yes", seen_by="owner", changes="remote", changed_by="owner"),
    ),
    "arrays and sweeps": (
        JobOption("array", "array",
            "run the job as an array of tasks: 1-10, 0-90:10, 1,3,5-7; append %4 to run at most 4 at once",
            field="array", short="a", metavar="SPEC",
            shown="Array", seen_by="all", changes="never", changed_by="owner"),
        JobOption("param", "params",
            "sweep parameter: lr=0.1,0.01 or seed=1:5 or x=0:1:0.25; may be repeated; {lr} in the command "
            "is replaced by the value",
            field="parameters", metavar="NAME=VALUES", many=True,
            shown="Parameters: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        PARAM_FILE,
        JobOption("max-concurrent", "count", "run at most N of these jobs (or tasks) at once",
            field="max_concurrent", metavar="N", low=1, high=1_000_000,
            shown="Max concurrent: {}", seen_by="all", changes="running", changed_by="operators"),
        JobOption("stop-when", "rules",
            "stop the job early by a metric that it reports: 'loss > 2 at step 500', 'loss is nan', "
            "'loss above median at step 500' (of the group); may be repeated",
            field="stop_when", metavar="RULE", many=True, only_on="here",
            shown="Stop when: {}", seen_by="owner", changes="running", changed_by="owner"),
    ),
    "retries, requeueing, time limit": (
        JobOption("max-retries", "count", "retry a failed job up to N times",
            field="max_retries", metavar="N", low=0, high=1000,
            shown="Retries", seen_by="all", changes="remote", changed_by="operators"),
        JobOption("retry-on", "retry",
            "which failures are retried (with --max-retries): oom, timeout, exit:75, signal:9, lost, start, "
            "failed, any (default failed)",
            field="retry_on", metavar="ENDS", many=True,
            requires=("max-retries",), because="--max-retries 3 --retry-on oom",
            shown="Retries", seen_by="owner", changes="remote", changed_by="owner"),
        JobOption("retry-delay", "seconds",
            "delay before the first retry: 30 (seconds) or 5m, doubled each time up to an hour (default 10)",
            field="retry_delay_s", metavar="S", low=0,
            shown="Retries", seen_by="owner", changes="remote", changed_by="owner"),
        JobOption("requeue", "flag",
            "requeue the job when it reaches its time limit, the machine restarts, or it exits with code 75",
            field="requeue",
            shown="Requeue: yes", seen_by="all", changes="remote", changed_by="operators"),
        JobOption("resume-args", "arguments",
            "arguments added to the command from the second attempt on: '--ckpt_path {latest}'; "
            "{latest:DIR} looks in DIR",
            field="resume_args", metavar="WORDS",
            requires=("requeue or max-retries",), because="they are for further attempts of the job",
            shown="Resume arguments: {}", seen_by="owner", changes="remote", changed_by="owner"),
        JobOption("signal", "signal",
            "send a signal before the time limit: USR1@60 sends USR1 60 seconds before it, USR1@5m 5 "
            "minutes; the programs of the job get it, its batch shell does not; B:USR1@60: only that shell",
            field="warning", metavar="SIG@S",
            shown="Warning: {}", seen_by="owner", changes="running", changed_by="owner"),
        JobOption("grace", "seconds",
            "time between TERM and KILL when the job is stopped: 90 (seconds) or 5m (default 30)",
            field="grace_s", metavar="S", low=0,
            shown="Grace: {} between TERM and KILL", seen_by="owner", changes="waiting", changed_by="owner"),
    ),
    "environment and files": (
        CHDIR,
        EXPORT,
        JobOption("venv", "path", "activate this Python virtual environment",
            field="venv", metavar="DIR",
            shown="Virtual environment: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("conda-env", "path", "activate this conda environment (name or directory)",
            field="conda_env", short="c", metavar="NAME",
            shown="Conda environment: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        CONFIG,
        JobOption("output", "path",
            "file for standard output: %j job, %x name, %A array, %a task, %u user, %h host",
            field="output", short="o", metavar="FILE",
            shown="Output: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("error", "path", "file for standard error (default: the same as --output)",
            field="error", short="e", metavar="FILE",
            shown="Error output: {}", seen_by="owner", changes="waiting", changed_by="owner"),
        JobOption("pty", "flag", "run the job in a terminal, for grun and gjob attach",
            field="pty", only_on="here",
            shown="Terminal: yes (gjob attach)", seen_by="owner", changes="waiting", changed_by="owner"),
    ),
    "notifications": (
        JobOption("notify-email", "emails",
            "email address to notify about the job; may be repeated (needs notifications.emails in "
            "gflow.toml)",
            field="notify_emails", metavar="ADDR", many=True,
            shown="Notify: {}", seen_by="owner", changes="remote", changed_by="owner"),
        JobOption("notify-on", "events",
            "events to notify about: job_started, job_failed, … (default: job_completed, _failed, _timeout, "
            "_cancelled); of a sweep or array: group_end, group_first_failure (default: these two)",
            field="notify_on", metavar="EVENTS", many=True,
            shown="Notify on: {}", seen_by="owner", changes="remote", changed_by="owner"),
    ),
    "gbatch": SUBMIT + COMMON,
    "accepted from Slurm": SLURM,
}
# fmt: on

JOB = tuple([option for options in HEADINGS.values() for option in options if isinstance(option, JobOption)])
GBATCH = JOB + CAPTURE + SUBMIT + SLURM + COMMON
