"""The data model: job, spec, GPU, audit entry.

`Spec` is the request, fixed at submission; only `gjob update` replaces it. `Job` is the spec plus the state
of the job. These are the only job records of gflow: the store writes them, the API shows them, the targets
read them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gflow.core.ids import TASK_MASK, JobKey, label, number_of
from gflow.core.reasons import NO_REASON, Reason
from gflow.core.resources import Shape, precedence_of, shape_of, slots_of
from gflow.core.task_set import TaskSet
from gflow.job_states import ACTIVE as ACTIVE
from gflow.job_states import FINAL as FINAL
from gflow.job_states import JobState as JobState

UNKILLABLE = "Unkillable"
# The default target: this machine.
LOCAL = "local"
# Prefix of a shape of this machine, in a race.
LOCAL_PREFIX = "local:"
# How long a job with --overflow waits here by default, in seconds.
DEFAULT_OVERFLOW_AFTER_S = 600


class Moment(NamedTuple):
    """One instant on both clocks, in seconds.

    `wall` can be set by the administrator; it is used for begin times, reservations and display. `boot` is
    the boot clock (it counts suspend, and cannot be set) plus an offset that `daemon.loop.timers` chooses
    for each boot, so that it continues after a reboot. All durations are measured on it: time limits, run
    times, waits, retry delays.
    """

    wall: float
    boot: float

    def to_wall(self, boot: float) -> float:
        """Convert a time on the boot clock to the wall clock, assuming that the wall clock is not set."""
        return self.wall + (boot - self.boot)


class Spec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The request for a job: everything that a start needs, captured at submission."""

    command: tuple[str, ...]
    cwd: str
    umask: int = 0o022
    # Content addresses of the environment block and the script text; the store keeps the bytes.
    environ: str = ""
    script: str = ""
    # Path of the script at submission; empty for commands.
    script_path: str = ""
    # Resource limits of the submitter that differ from the daemon's: (number, soft, hard), -1 unlimited.
    limits: tuple[tuple[int, int, int], ...] = ()
    # Jobs submitted together, as a sweep or under one --max-concurrent, share this number; 0: none.
    group: int = 0
    # Command and name of a sweep before its parameters were filled in; empty: they had no placeholders.
    template: tuple[str, ...] = ()
    name_template: str = ""
    # The earlier jobs of its name that a singleton waits for, found at submission.
    depends_earlier: tuple[JobKey, ...] = ()
    # The job that this one redoes; 0: none.
    redone_from: JobKey = JobKey(0)
    # Source of the value of `--gpu-memory auto`, for display; empty: the user gave the value.
    gpu_memory_from: str = ""
    # Name that is shown if the user gave none; empty: the id. Does not tell work apart (runtime_estimates).
    default_name: str = ""
    # The snapshot of the folder `sync` that was taken at submission; empty: no files are sent.
    snapshot: str = ""
    # The folder on a cluster over SSH that the user named; empty: that of the target.
    chdir: str = ""
    # Each field below is set by an option (options/job_options.py).
    name: str = ""
    gpus: int = 0
    shared: bool = False
    gpu_memory_mib: int = 0
    # Predicted memory on each GPU (--fit); 0: no prediction.
    predicted_mib: int = 0
    gpu_type: str = ""
    cpus: int | None = None
    memory_mib: int = 0
    # Processes that srun starts in the job, on each node, and the GPUs of each; 0: not given.
    ntasks_per_node: int = 0
    gpus_per_task: int = 0
    allow_unsatisfiable: bool = False
    priority: int = 10
    time_limit_s: int = 0
    # Stop the job once it has used none of its GPUs for this long; 0: never.
    stop_if_idle_s: int = 0
    # Whether the job gets a terminal.
    pty: bool = False
    # Whether it may be preempted.
    preemptible: bool = False
    grace_s: int = 30
    # (signal, seconds before the limit); (0, 0): no warning; a negative signal: only to the first process.
    warning: tuple[int, int] = (0, 0)
    # Patterns of log files; empty: the default path, and stderr goes with stdout.
    output: str = ""
    error: str = ""
    begin_at: float = 0.0
    hold: bool = False
    depends_on: tuple[JobKey, ...] = ()
    depends_any: tuple[JobKey, ...] = ()
    # Parents that must end in any way, must fail, and must start.
    depends_end: tuple[JobKey, ...] = ()
    depends_failure: tuple[JobKey, ...] = ()
    depends_start: tuple[JobKey, ...] = ()
    # Whether it waits for the end of the user's earlier jobs of its name.
    singleton: bool = False
    no_auto_cancel: bool = False
    array: str = ""
    max_concurrent: int = 0
    max_retries: int = 0
    # Kinds of ends that are retried (see `options.lists`); empty: any failure.
    retry_on: tuple[str, ...] = ()
    retry_delay_s: int = 10
    requeue: bool = False
    # Rules of early stopping (`gflow.stop_rules`), in their canonical text.
    stop_when: tuple[str, ...] = ()
    # Arguments that further attempts add to the command; `{latest}` is the newest checkpoint.
    resume_args: str = ""
    project: str = ""
    comment: str = ""
    # Directories of the Python environments to activate.
    venv: str = ""
    conda_env: str = ""
    # Image in which the command runs on a cluster; empty: that of the target; NO_CONTAINER: none.
    container: str = ""
    notify_emails: tuple[str, ...] = ()
    notify_on: tuple[str, ...] = ()
    # Parameters that a sweep chose for this job: (name, value).
    parameters: tuple[tuple[str, str], ...] = ()
    # Samples per training step over all GPUs, for any shape of the job; 0: left to the script.
    effective_batch: int = 0
    # Target; empty: this machine.
    on: str = ""
    # Target that gets the job if it does not start here within this many seconds; empty: none. None: the
    # default of that target, which is filled in at submission.
    overflow: str = ""
    overflow_after_s: int | None = None
    # Number of nodes, each with `gpus` GPUs and `cpus` CPUs. More than one needs a cluster.
    nodes: int = 1
    # Named shape of gflow.toml that was requested; its values are in the other fields.
    shape_name: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclusive: bool = False
    # Further options for sbatch, passed through.
    slurm: tuple[str, ...] = ()
    # Folder whose files are sent to the cluster, absolute once submitted; empty: as the target says.
    sync: str = ""
    no_sync: bool = False
    # The most that may be sent, in MiB; 0: as the target says.
    sync_size_mib: int = 0
    # Patterns of result files that are fetched when the job ends; empty: as the target says.
    outputs: tuple[str, ...] = ()
    # Alternative shapes: the first that can start runs the job; `local:n1_gpu2` is one of this machine.
    race: tuple[str, ...] = ()

    @property
    def precedence(self) -> int:
        """Sort key, higher first: priority, then non-preemptible before preemptible."""
        return precedence_of(self.priority, self.preemptible)

    @property
    def slots(self) -> int:
        """CPU slots."""
        return slots_of(self)

    @property
    def shape(self) -> Shape:
        return shape_of(self)

    @property
    def races_here(self) -> bool:
        """Whether one of the shapes in its race is for this machine."""
        return any(shape.startswith(LOCAL_PREFIX) for shape in self.race)

    @property
    def patience_s(self) -> int:
        """How long the job waits here before it overflows, in seconds."""
        return DEFAULT_OVERFLOW_AFTER_S if self.overflow_after_s is None else self.overflow_after_s

    @property
    def size(self) -> int:
        """Approximate memory of this record, in bytes."""
        return size_of(self)

    @property
    def parents(self) -> tuple[JobKey, ...]:
        """All parents, of every kind of dependency."""
        success = self.depends_on + self.depends_any
        return success + self.depends_end + self.depends_failure + self.depends_start + self.depends_earlier

    @property
    def parents_id(self) -> tuple[int, ...]:
        """Identity of the parents: equal for specs that share the tuples. Valid while the spec lives."""
        success = id(self.depends_on), id(self.depends_any)
        return (
            *success,
            id(self.depends_end),
            id(self.depends_failure),
            id(self.depends_start),
            id(self.depends_earlier),
        )

    @property
    def shared_name(self) -> str:
        """The name that several jobs may have; empty: none was given, and the command has none."""
        return self.name or self.default_name


# Fields of parents that the user names, one for each kind of dependency.
PARENT_FIELDS = ("depends_on", "depends_any", "depends_end", "depends_failure", "depends_start")


# The value of `Spec.container` for a job that runs in no container, whatever its target says.
NO_CONTAINER = "none"
# A spec without options: it has the default of each.
DEFAULT_SPEC = Spec(command=(), cwd="")


def size_of(spec: Spec) -> int:
    """Approximate bytes of the variable-length fields, without those that may change while the job runs."""
    size = len(spec.cwd) + len(spec.chdir) + len(spec.script_path) + len(spec.output) + len(spec.error)
    size += len(spec.venv) + len(spec.conda_env) + len(spec.container)
    for text in spec.command:
        size += len(text)
    for text in spec.template:
        size += len(text)
    for name, value in spec.parameters:
        size += len(name) + len(value)
    return size + 8 * links_of(spec)


def links_of(spec: Spec) -> int:
    """Number of dependency links: parents that the spec names."""
    return len(spec.parents)


class ArrayProgress(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Progress of an array: the tasks that have not started, and counts of the others by outcome."""

    pending: TaskSet
    active: int = 0
    ok: int = 0
    bad: int = 0
    cancelled: int = 0
    # The highest exit code of a failed task so far, as a shell shows it.
    worst: int = 0


class RemoteState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The remote side of a job that another target has."""

    # Its id there, and the nodes on which it runs.
    id: str = ""
    nodes: str = ""
    # Whether the job is to be held here once it is withdrawn.
    hold: bool = False
    # GPUs kept for it here while it is withdrawn in order to start here; None: it is not.
    kept: tuple[int, ...] | None = None
    # GPUs of the shape that won a race there, on all nodes; 0: those of the spec.
    gpus: int = 0


class JobProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Progress that a job reports about itself. Values that it omits have their defaults."""

    # Time of the report, on the wall clock.
    at: float
    step: int
    # Time of the report with this step; 0: that of this report.
    step_at: float = 0.0
    steps: int = 0
    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    # Expected seconds from the report to the end.
    left_s: float | None = None
    # Further values by name (`metric_names`), all finite.
    metrics: dict[str, float] = {}
    # Names of `loss` and metrics whose latest value is not finite.
    nan: tuple[str, ...] = ()
    # Folder in which the run takes requests for profiles; empty: it takes none.
    profile_dir: str = ""

    def metric(self, name: str) -> float | None:
        """The value of a metric, or of `loss`; None: not reported."""
        return self.loss if name == "loss" else self.metrics.get(name)

    @property
    def names(self) -> set[str]:
        """The names of the metrics, and `loss`, that it has a value of."""
        return {*self.metrics, *self.nan, *(["loss"] if self.loss is not None else [])}

    @property
    def percent(self) -> int | None:
        return min(100, 100 * self.step // self.steps) if self.steps else None

    @property
    def part(self) -> float:
        """The part of its steps that the job has done, from 0 to 1; 0 if their number is unknown."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0


class Job(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """One job: its spec and its state. Times are seconds on the wall clock, unless the name says `boot`.

    An array is one job too, with `progress`. A task becomes a job of its own when it starts. A field with a
    `name` is stored under that name.
    """

    key: JobKey
    spec: Spec
    uid: int
    user: str
    submitted_at: float
    state: JobState = JobState.QUEUED
    reason: Reason = NO_REASON
    attempt: int = 0
    gpu_ids: tuple[int, ...] = ()
    started_at: float | None = None
    started_boot: float | None = None
    finished_at: float | None = None
    # Duration of the last attempt, on the boot clock; None: not over, or there was none.
    ran_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    # Set while a running job is being stopped: the state in which it will end (Queued: preempted).
    stopping: JobState | None = None
    # Whether it is being killed without grace time.
    stop_now: bool = False
    progress: ArrayProgress | None = None
    # Attempts that failed and were retried; requeued attempts in a row that ended within a minute.
    retries: int = 0
    quick_ends: int = 0
    # CPU time and peak memory so far, see `add_usage`. A peak of 0 means: not measured.
    cpu_ms: int = 0
    peak_kib: int = 0
    # Earliest start of a retried job (0: at once), on the boot clock and on the wall clock.
    retry_boot: float = 0.0
    retry_at: float = 0.0
    # Whether the GPUs it has, or had last, are simulated.
    simulated: bool = False
    # Time since which it waits for resources only, on the boot clock.
    ready_at: float = 0.0
    target: str = LOCAL
    # Set from the hand-over to another target until the job has ended there or was withdrawn.
    remote: RemoteState | None = msgspec.field(default=None, name="abroad")
    # Latest progress report. Saved only together with another change of the job.
    progress_report: JobProgress | None = msgspec.field(default=None, name="headway")

    def add_usage(self, cpu_ms: int, peak_kib: int) -> None:
        """Add the usage of an attempt or a task: the sum of CPU times, the maximum of peaks."""
        self.cpu_ms += cpu_ms
        self.peak_kib = max(self.peak_kib, peak_kib)

    @property
    def number(self) -> int:
        return number_of(self.key)

    @property
    def task(self) -> int | None:
        task = self.key & TASK_MASK
        return task - 1 if task else None

    @property
    def label(self) -> str:
        return label(self.key)

    @property
    def name(self) -> str:
        """The name that is shown. Several jobs may have the same."""
        return self.spec.name or self.spec.default_name or f"job-{self.label}"

    @property
    def file_name(self) -> str:
        """The name that the user gave, or one with the id: files of unnamed jobs must not collide."""
        return self.spec.name or f"job-{self.label}"

    @property
    def begin_at(self) -> float:
        """The earliest start, on the wall clock: the requested begin time, or the end of the retry delay."""
        return max(self.spec.begin_at, self.retry_at)

    @property
    def overflows_at(self) -> float | None:
        """Deadline of the overflow to another target, on the boot clock; None: it does not overflow."""
        if not self.spec.overflow or self.target != LOCAL or self.state is not JobState.QUEUED:
            return None
        return self.ready_at + self.spec.patience_s

    def run_s(self, boot: float) -> float | None:
        """Duration of the latest attempt so far, or in all, in seconds; None: there was none."""
        if self.state in FINAL:
            return self.ran_s
        return None if self.started_boot is None else max(0.0, boot - self.started_boot)

    def left_s(self, wall: float) -> float | None:
        """Seconds to the end of a running job, by its last progress report; None: unknown or not running."""
        report = self.progress_report
        if report is None or report.left_s is None or self.state is not JobState.RUNNING:
            return None
        if self.started_at is not None and report.at < self.started_at:  # reported by an earlier attempt
            return None
        return max(0.0, report.left_s - (wall - report.at))

    def set_retry_delay(self, delay_s: float, at: Moment) -> None:
        """Set the retry delay, in seconds; 0: none."""
        self.retry_boot, self.retry_at = (at.boot + delay_s, at.wall + delay_s) if delay_s else (0.0, 0.0)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_array(self) -> bool:
        """Whether this is the record of an array, which holds no resources itself."""
        return self.progress is not None

    @property
    def is_listed(self) -> bool:
        """Whether listings show this job. Its tasks stand for an array of which all have started."""
        return self.progress is None or bool(self.progress.pending)


class AuditEntry(NamedTuple):
    """One entry of the audit log. `uid` None: not caused by a user."""

    at: float
    key: JobKey | None
    uid: int | None
    origin: str
    what: str
    detail: str


class Block(NamedTuple):
    """Why a GPU gets no new jobs: kind (Unmanaged, CannotTell, Unhealthy, Lost, Drained) and detail."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Idle(NamedTuple):
    """Unused GPUs of an attempt: for how many seconds, and the description."""

    attempt: int
    unused_s: float
    text: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU of this machine, detected or simulated.

    `index` is assigned by gflow and stays with the card. `number` is the present index of the driver.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    simulated: bool = False
    number: int = -1
    # UUID of the card of which this is a MIG slice; empty for a whole card.
    parent: str = ""
    # NUMA node, -1 if there is none; indices of the GPUs connected by NVLink.
    node: int = -1
    links: tuple[int, ...] = ()
