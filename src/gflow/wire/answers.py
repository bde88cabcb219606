"""Answer types of the API. OpenAPI derives its schemas from them; docstrings become descriptions.

A test requests each answer from a daemon and validates it against its type, including every key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from gflow.core.forecast.explain import Blocker
from gflow.core.forecast.start_time import Start
from gflow.job_states import JobState

if TYPE_CHECKING:
    State = str
else:
    State = Literal[tuple(state.value for state in JobState)]


class Headway(TypedDict):
    """How far a job says it is; null what it did not say."""

    step: int
    steps: int | None
    percent: int | None
    epoch: int | None
    epochs: int | None
    loss: float | None
    samples_per_s: float | None
    left_s: float | None
    at: str


class Tasks(TypedDict):
    """How far an array is. `pending`: those that have not started, as in `4-60`."""

    pending: str
    waiting: int
    active: int
    finished: int
    failed: int
    cancelled: int


class Notify(TypedDict):
    """Whom a job's owner wants to be told, and of what."""

    emails: list[str]
    events: list[str]


class JobView(TypedDict):
    """A job. Times are RFC 3339, in UTC; `asked` has every option that is not the default."""

    # A number; for a task of an array a string: 42_3.
    id: int | str
    array_id: int | None
    task_id: int | None
    name: str
    user: str
    project: str | None
    state: State
    reason: str | None
    stopping: bool
    exit_code: int | None
    signal: int | None
    attempt: int
    tasks: Tasks | None
    progress: Headway | None
    gpus: int
    gpu_ids: list[int]
    simulated: bool
    priority: int
    submitted_at: str
    started_at: str | None
    finished_at: str | None
    ran_s: float | None
    time_limit_s: int | None
    stop_if_idle_s: int | None
    preemptible: bool
    cpu_time_s: float | None
    peak_memory_mib: float | None
    cpus: int
    memory_mib: int | None
    gpu_memory_mib: int | None
    gpu_memory_from: str | None
    gpu_memory_predicted_mib: int | None
    shared: bool
    begin_at: str | None
    depends_on: list[int | str]
    depends_any: list[int | str]
    command: list[str]
    script: str | None
    cwd: str
    target: str
    # For jobs on clusters: the id on the cluster, and the nodes.
    target_id: str | None
    target_nodes: str | None
    nodes: int
    partition: str | None
    group_id: int | None
    max_concurrent: int | None
    parameters: dict[str, str]
    command_template: list[str] | None
    redone_from: int | str | None
    max_retries: int
    retries: int
    retry_on: list[str]
    retry_at: str | None
    comment: str | None
    venv: str | None
    conda_env: str | None
    notify: Notify
    asked: dict[str, Any]


class JobsAnswer(TypedDict):
    """Jobs, and how many there are; more than are listed where a limit left some out."""

    jobs: list[JobView]
    total: int


class PlannedJob(TypedDict):
    """A job that would be submitted."""

    name: str | None
    gpus: int
    array: str | None
    parameters: dict[str, str]
    command: list[str]
    script: str | None
    depends_on: list[int | str]


class DryRunAnswer(TypedDict):
    """What would be submitted, and what sbatch would get for those on clusters. Nothing was."""

    dry_run: Literal[True]
    jobs: list[PlannedJob]
    total: int
    scripts: list[str]


class JudgedJob(TypedDict):
    """What a cancel would do to a job: `blocked` ones wait for `parents`, `invalid` ones are over."""

    id: int | str
    state: State
    verdict: Literal["ok", "invalid", "blocked"]
    parents: list[int | str]


class DryCancelAnswer(TypedDict):
    """What would be cancelled. Nothing was."""

    dry_run: Literal[True]
    jobs: list[JudgedJob]
    total: int


class LogAnswer(TypedDict):
    """Where a job's output is. `final`: no more will come."""

    job_id: int | str
    path: str
    final: bool
    uid: int


class TerminalAnswer(TypedDict):
    """The socket of a job's terminal, for its owner alone; null: it has none now."""

    job_id: int | str
    state: State
    path: str | None


class ExecAnswer(TypedDict):
    """The socket by which a command is reached. It starts when somebody comes, within half a minute."""

    path: str


class WhyAnswer(TypedDict):
    """What is in a job's way, when it will probably start, and options with which it would start now."""

    job: int | str
    state: State
    reason: str | None
    blockers: list[Blocker]
    start: Start | None
    instead: list[str]
    limits: list[str]
    # Time of the hand-over to another target if the job still waits, in seconds since 1970.
    overflows_at: float | None
    # Time from which the job has a start reservation, in the future or the past.
    promised_at: float | None


class StoryLine(TypedDict):
    """One thing that happened to a job. `by`: who did it; null: gflow itself."""

    at: str
    event: str
    detail: str
    by: str | None
    origin: str


class StoryAnswer(TypedDict):
    """The story of a job, the oldest first."""

    job: int | str
    events: list[StoryLine]


class Used(TypedDict):
    """What a job did with one of its GPUs in one span of time: means, and the most."""

    at: str
    gpu: int | str
    span_s: float
    busy: float | None
    busy_most: float | None
    memory_mib: float | None
    power_w: float | None
    temperature: float | None
    clock_mhz: float | None
    slowed: list[str]


class GpuOnNode(TypedDict):
    """One GPU of a job on a cluster, at this moment."""

    gpu: int
    name: str
    busy: int | None
    memory_mib: int | None
    memory_total_mib: int | None
    power_w: float | None
    temperature: int | None


class OnNode(TypedDict):
    """What a job uses on one node of a cluster, at this moment. `note`: what could not be seen."""

    node: str
    cpus: int
    cpus_used: float
    cpu_time_s: float
    memory_mib: int
    processes: int
    gpus: list[GpuOnNode]
    note: str


class UsageAnswer(TypedDict):
    """What a job did with its GPUs: samples, and all of it in one line for each GPU.

    `nodes`: of a job that runs on a cluster, and then alone.
    """

    job: int | str
    predicted_mib: int | None
    samples: list[Used]
    totals: list[Used]
    nodes: list[OnNode] | None


class Happening(TypedDict):
    """One event. `job` as it is now, which may be later than the event."""

    id: int
    event: str
    at: str
    detail: str
    job_id: int | str | None
    job: JobView | None


class Connected(TypedDict):
    """The first event of a stream: what comes has higher ids than this."""

    event: Literal["connected"]
    version: str
    id: int


Missed = TypedDict("Missed", {"event": Literal["missed"], "from": int, "to": int})
Missed.__doc__ = "Events that are too long ago to be told again."


class DrainAnswer(TypedDict):
    """Whether nothing more starts, at all or on some GPUs, and why."""

    drained: bool
    reason: str | None
    drained_gpus: dict[str, str]


class GpuLine(TypedDict):
    """A GPU in one line."""

    index: int
    status: Literal["allocated", "idle", "unavailable"]
    notes: list[str]


class GpuLinesAnswer(DrainAnswer):
    """All GPUs, and what is drained."""

    gpus: list[GpuLine]


class AllowedAnswer(TypedDict):
    """The GPUs that new jobs may get; null: all."""

    allowed_gpu_indices: list[int] | None


class LimitAnswer(TypedDict):
    """The jobs whose number is bounded together, and by what; null: any number."""

    jobs: list[int | str]
    max_concurrent: int | None


class QuotaAnswer(TypedDict):
    """What somebody may have at once; null: any number. No name: each that is not named."""

    scope: Literal["user", "project"]
    name: str | None
    max_running_jobs: int | None
    max_running_gpus: int | None
    max_queued_jobs: int | None


class QuotaLine(QuotaAnswer):
    """A quota, and what counts against it."""

    running_jobs: int
    running_gpus: int
    queued_jobs: int


class QuotasAnswer(TypedDict):
    """Every quota."""

    quotas: list[QuotaLine]


class ReservationAnswer(TypedDict):
    """GPUs kept for one person. Times are in seconds since 1970."""

    id: int
    user: str
    gpu_indices: list[int]
    start_time: float
    end_time: float
    status: Literal["pending", "active", "completed", "cancelled"]
    created_at: float
    cancelled_at: float | None


class ReservationsAnswer(TypedDict):
    """Reservations, those that begin first in front."""

    reservations: list[ReservationAnswer]


class Ignored(TypedDict):
    """A process that blocks nothing."""

    gpu_index: int
    pid: int


class IgnoredAnswer(TypedDict):
    """Processes that somebody told gflow to overlook."""

    processes: list[Ignored]


class IgnoredNowAnswer(Ignored):
    """A process, and whether anything changed."""

    changed: bool


class BackupAnswer(TypedDict):
    """Where the backup is."""

    path: str


class Delivery(TypedDict):
    """A destination of notifications; no error: it took the message."""

    destination: str
    error: str | None


class DeliveriesAnswer(TypedDict):
    """What became of a test of notifications."""

    destinations: list[Delivery]


class TokenView(TypedDict):
    """A token, without its text."""

    id: str
    name: str
    user: str
    made_at: str
    expires_at: str


class NewTokenAnswer(TokenView):
    """A new token. Its text is here and nowhere else."""

    token: str


class TokensAnswer(TypedDict):
    """Tokens."""

    tokens: list[TokenView]


class RevokedAnswer(TypedDict):
    """The token that opens nothing any more."""

    revoked: TokenView


class Figures(TypedDict):
    """Sums and averages; null where there is nothing to take the average of."""

    total_jobs: int
    completed_jobs: int
    failed_jobs: int
    cancelled_jobs: int
    timeout_jobs: int
    running_jobs: int
    queued_jobs: int
    avg_wait_secs: float | None
    avg_runtime_secs: float | None
    total_gpu_hours: float
    jobs_with_gpus: int
    avg_gpus_per_job: float | None
    success_rate: float | None


class TopJob(TypedDict):
    """One of the longest jobs."""

    id: int | str
    name: str
    user: str
    state: State
    runtime_secs: float
    gpus: int


class OfUser(Figures):
    """The figures of one person."""

    user: str


class OfProject(Figures):
    """The figures of one project; null: of no project."""

    project: str | None


class StatsAnswer(Figures):
    """What was used. `simulated`: the GPUs are, and so are the figures about them."""

    user: str | None
    since: str | None
    simulated: bool
    left_out_jobs: int
    peak_gpu_usage: int
    top_jobs: list[TopJob]
    by_user: list[OfUser]
    by_project: list[OfProject]


class PredictedJob(TypedDict):
    """A job whose memory was predicted. An error above zero: too much."""

    id: int | str
    name: str
    user: str
    state: str
    predicted_mib: int
    measured_mib: int | None
    error_percent: float | None


class PredictionsAnswer(TypedDict):
    """How good predictions of GPU memory were, if they are asked for."""

    user: str | None
    since: str | None
    simulated: bool
    predicted_jobs: int
    measured_jobs: int
    median_error_percent: float | None
    p90_error_percent: float | None
    worst_error_percent: float | None
    too_low_jobs: int
    jobs: list[PredictedJob]


class Process(TypedDict):
    """A process on a GPU that is of no job. `tolerated`: why it blocks nothing."""

    pid: int
    user: str
    command: str
    memory_mib: int | None
    tolerated: str


class Holder(TypedDict):
    """A job that has a GPU. No id: it is of somebody else, where people see nothing of others' jobs."""

    id: int | str | None
    name: str
    user: str
    used_mib: int | None
    limit_mib: int | None


class GpuMeters(TypedDict, total=False):
    """What is measured where the GPU is real."""

    utilisation: int | None
    temperature: int | None
    power_w: float | None
    clock_mhz: int | None
    memory_clock_mhz: int | None
    slowed: list[str]
    pci_bus: str
    mig_parent: str | None


class GpuView(GpuMeters):
    """All about one GPU."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    simulated: bool
    available: bool
    reason: str | None
    jobs: list[int | str]
    used_mib: int | None
    idle_s: float | None
    idle_s_at_least: bool
    free_at: str | None
    holders: list[Holder]
    processes: list[Process]


class InfoAnswer(DrainAnswer):
    """The GPUs. `limits`: what holds the memory limits of jobs that share one."""

    gpus: list[GpuView]
    allowed_gpu_indices: list[int] | None
    trouble: str
    driver: str
    limits: list[str]


class Setting(TypedDict):
    """A setting, and where it comes from."""

    value: Any
    origin: str


class Stray(TypedDict):
    """A job that runs and that the database does not know; its shim, by pid and start time."""

    job: str
    pid: int | None
    started: int | None


class StatusAnswer(TypedDict):
    """The daemon and what it has. `read_only`: why it takes no changes; empty: it does."""

    version: str
    pid: int
    uptime_secs: float
    gpu_total: int
    gpu_available: int
    gpu_simulated: bool
    cpu_total: int
    cpu_available: int
    memory_total_mib: int
    memory_available_mib: int
    read_only: str
    running: int
    waiting: int
    flags: list[str]
    settings: dict[str, Setting]
    config_files: list[str]
    notes: list[str]
    strays: list[Stray]
    socket: str
    data: str
    database: str


class HealthAnswer(TypedDict):
    """Whether the daemon takes changes."""

    status: Literal["ok", "read_only"]
    pid: int
    detail: str


class Problem(TypedDict):
    """A refusal (RFC 9457). `exit_code`: what a command leaves with."""

    type: str
    title: str
    status: int
    code: str
    hint: str
    exit_code: int
