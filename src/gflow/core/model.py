"""What the engine knows: the job, what was asked for it, the GPUs.

`Spec` is what the submitter asked for and never changes by itself; `Job` is the spec plus
what became of it. These are the only job records of the whole product: the store writes
them, the API shows them, the runner reads them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from gflow.core.ids import TASK_MASK, JobKey, label, number_of
from gflow.core.resources import Shape, precedence_of, shape_of, slots_of
from gflow.core.task_set import TaskSet


class JobState(enum.Enum):
    """The seven states. Anything finer is a reason. See `core.transitions` for the table."""

    QUEUED = "Queued"
    HOLD = "Hold"
    RUNNING = "Running"
    FINISHED = "Finished"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    TIMEOUT = "Timeout"

    # There is one of each, and they are looked up at every step: an enum's own hash is written in Python.
    __hash__ = object.__hash__


SHORT = {
    JobState.QUEUED: "PD",
    JobState.HOLD: "H",
    JobState.RUNNING: "R",
    JobState.FINISHED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMEOUT: "TO",
}
# The reason of a job that was cancelled because a parent did not succeed begins so.
CUT_OFF = "DependencyFailed:"
# The reason of a running job that makes way for another, whose id follows.
PREEMPTED = "Preempted: "
# The reason of a job that waits for reserved GPUs, or was stopped because its GPUs are.
RESERVED = "Reservation"
# The reason of a job that does not use its GPUs, and of one that was stopped for it.
IDLE = "IdleGPU"
UNKILLABLE = "Unkillable"
# Where jobs run unless somebody says otherwise: this machine.
LOCAL = "local"
# How a shape of this machine begins, in a race.
HERE = "local:"
# How long a job with --overflow waits here, unless it or its target says otherwise.
USUAL_PATIENCE_S = 600
ACTIVE = frozenset({JobState.QUEUED, JobState.HOLD, JobState.RUNNING})
FINAL = frozenset(JobState) - ACTIVE


class Moment(NamedTuple):
    """One instant on both clocks, in seconds.

    `wall` can be set by people: it is for begin times, reservations and what is shown. `boot` is the boot
    clock (it counts suspend, and cannot be set) plus a constant that `daemon.loop.timers` chooses for each
    boot, so that it goes on after a reboot. All durations are counted on it: limits, run times, waits,
    pauses.
    """

    wall: float
    boot: float

    def shown(self, boot: float) -> float:
        """A time on the boot clock as the wall clock will show it, if nobody sets that."""
        return self.wall + (boot - self.boot)


class Spec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What was asked for. Everything a start needs, captured at submission."""

    command: tuple[str, ...]
    cwd: str
    umask: int = 0o022
    # Content addresses of the environment block and the script text; the store has the bytes.
    environ: str = ""
    script: str = ""
    # Where the script was when it was submitted; empty for commands.
    script_path: str = ""
    # Resource limits of the submitter that differ from ours: (number, soft, hard), -1 unlimited.
    limits: tuple[tuple[int, int, int], ...] = ()
    # Jobs submitted together, as a sweep or under one --max-concurrent, share this number; 0: none.
    group: int = 0
    # Command and name of a sweep before its parameters were put in; empty: there were none to put in.
    template: tuple[str, ...] = ()
    name_template: str = ""
    # The job that this one does again; 0: none.
    redone_from: JobKey = JobKey(0)
    # Where the figure of `--gpu-memory auto` comes from, for people; empty: somebody gave it.
    gpu_memory_from: str = ""
    # The fields below are filled by options of the same table row (options/table.py).
    name: str = ""
    gpus: int = 0
    shared: bool = False
    gpu_memory_mib: int = 0
    # What was predicted on each GPU (--fit); 0: nothing.
    predicted_mib: int = 0
    gpu_type: str = ""
    cpus: int | None = None
    memory_mib: int = 0
    allow_unsatisfiable: bool = False
    priority: int = 10
    time_limit_s: int = 0
    # Stopped when it has used none of its GPUs for so long; 0: never.
    stop_if_idle_s: int = 0
    # Whether it has a terminal.
    pty: bool = False
    # Whether it makes way for others.
    preemptible: bool = False
    grace_s: int = 30
    # (signal, seconds before the limit); (0, 0): no warning.
    warning: tuple[int, int] = (0, 0)
    # Patterns of log files; empty: the usual place, and errors with the output.
    output: str = ""
    error: str = ""
    begin_at: float = 0.0
    hold: bool = False
    depends_on: tuple[JobKey, ...] = ()
    depends_any: tuple[JobKey, ...] = ()
    no_auto_cancel: bool = False
    array: str = ""
    max_concurrent: int = 0
    max_retries: int = 0
    # Ends after which it is tried again (see `options.lists`); empty: any failure.
    retry_on: tuple[str, ...] = ()
    retry_delay_s: int = 10
    requeue: bool = False
    # What further attempts add to the command; `{latest}` in it is the newest checkpoint.
    resume_args: str = ""
    project: str = ""
    comment: str = ""
    # Folders of the Python environments to activate.
    venv: str = ""
    conda_env: str = ""
    notify_emails: tuple[str, ...] = ()
    notify_on: tuple[str, ...] = ()
    # What a sweep chose for this job: (name, value).
    parameters: tuple[tuple[str, str], ...] = ()
    # Samples of a training step over all GPUs, whatever shape the job gets; 0: the script says.
    effective_batch: int = 0
    # Which target runs it; empty: this machine. The rest of it means something on clusters alone.
    on: str = ""
    # Which target gets it if it does not start here within so many seconds; empty: none. None: as long as
    # that target's settings say, which are filled in when it is submitted.
    overflow: str = ""
    overflow_after_s: int | None = None
    # How many nodes, each with `gpus` GPUs and `cpus` CPUs.
    nodes: int = 1
    # The shape of gflow.toml that it was asked for by; what that means is in the other fields.
    shape_name: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclusive: bool = False
    # Options for sbatch that gflow does not know.
    slurm: tuple[str, ...] = ()
    # Shapes of which the first that starts runs the job; `local:n1_gpu2` is one of this machine.
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
        """Whether this machine takes part in its race."""
        return any(shape.startswith(HERE) for shape in self.race)

    @property
    def patience_s(self) -> int:
        """How long it waits here before it overflows."""
        return USUAL_PATIENCE_S if self.overflow_after_s is None else self.overflow_after_s

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return size_of(self)

    @property
    def parents(self) -> tuple[JobKey, ...]:
        """Every job this one may wait for."""
        return self.depends_on + self.depends_any


def size_of(spec: Spec) -> int:
    """About how many bytes of memory it takes besides the usual; of what cannot change while it runs."""
    size = len(spec.cwd) + len(spec.script_path) + len(spec.output) + len(spec.error)
    size += len(spec.venv) + len(spec.conda_env)
    for text in spec.command:
        size += len(text)
    for text in spec.template:
        size += len(text)
    for name, value in spec.parameters:
        size += len(name) + len(value)
    return size + 8 * links_of(spec)


def links_of(spec: Spec) -> int:
    """How many parents it names."""
    return len(spec.depends_on) + len(spec.depends_any)


class ArrayProgress(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How far an array is: tasks that have not started, and how the others stand."""

    pending: TaskSet
    active: int = 0
    ok: int = 0
    bad: int = 0
    cancelled: int = 0
    # The worst exit code of a task so far, as a shell would show it.
    worst: int = 0


class Abroad(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is known of a job that another target has."""

    # Its number there, and the machines on which it runs.
    id: str = ""
    nodes: str = ""
    # Whether it is to be held here as soon as it is taken back from there.
    hold: bool = False
    # What is kept for it here while it is taken back, because it can start here; None: nothing is.
    kept: tuple[int, ...] | None = None


class JobProgress(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """How far a job says it is. Whatever it does not say has its default."""

    # When it said so, on the wall clock.
    at: float
    step: int
    steps: int = 0
    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    # Seconds from then to its end, as it expects.
    left_s: float | None = None

    @property
    def percent(self) -> int | None:
        return min(100, 100 * self.step // self.steps) if self.steps else None


class Job(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """One job: its spec and what became of it. Times are seconds on the wall clock, unless they say `boot`.

    An array is one job too, with `progress`; a task gets a job of its own when it starts.
    """

    key: JobKey
    spec: Spec
    uid: int
    user: str
    submitted_at: float
    state: JobState = JobState.QUEUED
    reason: str = ""
    attempt: int = 0
    gpu_ids: tuple[int, ...] = ()
    started_at: float | None = None
    started_boot: float | None = None
    finished_at: float | None = None
    # How long its last attempt ran, on the boot clock; None: that is not over, or there was none.
    ran_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    # Set while a running job is being stopped: the state it will end in (Queued: it makes way).
    stopping: JobState | None = None
    # Whether it is being killed without grace.
    stop_now: bool = False
    progress: ArrayProgress | None = None
    # Attempts that failed and were retried; attempts in a row that ended within a minute.
    retries: int = 0
    quick_ends: int = 0
    # What it used so far: see `add_usage`. A peak of 0 means that nobody has measured anything.
    cpu_ms: int = 0
    peak_kib: int = 0
    # When a retried job may start again (0: at once), on the boot clock, and as the wall clock had it.
    retry_boot: float = 0.0
    retry_at: float = 0.0
    # Whether the GPUs it has, or had last, are simulated.
    simulated: bool = False
    # Since when it has waited for nothing but resources, on the boot clock.
    ready_at: float = 0.0
    target: str = LOCAL
    # Set from the moment in which another target gets it until it has ended there, or was taken back.
    abroad: Abroad | None = None
    # What it told last about how far it is. Durable only when something else about it becomes so.
    headway: JobProgress | None = None

    def add_usage(self, cpu_ms: int, peak_kib: int) -> None:
        """Count an attempt, or an array's task: CPU time adds up, the peak is that of the largest."""
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
        return self.spec.name or f"job-{self.label}"

    @property
    def begin_at(self) -> float:
        """The time before which it must not start, for people: asked for, or the pause before a retry."""
        return max(self.spec.begin_at, self.retry_at)

    @property
    def overflows_at(self) -> float | None:
        """When it goes to another target if it still waits here (boot clock); None: never."""
        if not self.spec.overflow or self.target != LOCAL or self.state is not JobState.QUEUED:
            return None
        return self.ready_at + self.spec.patience_s

    def run_s(self, boot: float) -> float | None:
        """How long its latest attempt has run by now, or ran; None: there was none."""
        if self.state in FINAL:
            return self.ran_s
        return None if self.started_boot is None else max(0.0, boot - self.started_boot)

    def pause(self, pause_s: float, at: Moment) -> None:
        """It may not start again for so long; 0: at once."""
        self.retry_boot, self.retry_at = (at.boot + pause_s, at.wall + pause_s) if pause_s else (0.0, 0.0)

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_array(self) -> bool:
        """Whether this is the record of a whole array, which holds no resources itself."""
        return self.progress is not None


class AuditEntry(NamedTuple):
    """One line of the audit. `uid` None: nobody, the machine itself."""

    at: float
    key: JobKey | None
    uid: int | None
    origin: str
    what: str
    detail: str


class Block(NamedTuple):
    """Why a GPU gets no new jobs (Unmanaged, CannotTell, Unhealthy, Lost, Drained), and the story."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class Idle(NamedTuple):
    """GPUs that an attempt does not use: for how long, and the story."""

    attempt: int
    unused_s: float
    text: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU of this machine, as detected (or simulated, and then it says so).

    `index` is ours and stays with the card; `number` is what the driver counts at the moment.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int
    simulated: bool = False
    number: int = -1
    # The card that this is a MIG slice of, by UUID; empty for a whole card.
    parent: str = ""
    # NUMA node, -1 if there is none; GPUs within reach of NVLink.
    node: int = -1
    links: tuple[int, ...] = ()
