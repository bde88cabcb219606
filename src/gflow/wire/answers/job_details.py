"""Answers about one job: log, terminal, wait report, audit log, GPU usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gflow.core.forecast.explain import Blocker
from gflow.core.forecast.start_time import Start
from gflow.core.forecast.wait_report import Ahead, WaitReport
from gflow.core.model import AuditEntry, Job
from gflow.core.reasons import Reason
from gflow.wire.answers.jobs import State
from gflow.wire.encoding import JobId, key_label, rfc3339
from gflow.wire.shell_words import spell_change


class LogAnswer(msgspec.Struct, kw_only=True):
    """Where a job's output is. `final`: no more will come. `waits`: why the job has not started.

    `ended`: how the job ended, as in `exited with code 3 after 00:01:12`.
    """

    job_id: JobId
    path: str
    final: bool
    uid: int
    waits: str | None = None
    ended: str | None = None
    # Why the file may lack the last part of the output.
    note: str | None = None


class OutputAnswer(msgspec.Struct, kw_only=True):
    """A part of a job's log: its bytes from `start` to `end` of `size`. `final`: no more will come.

    `line`: the number of its first line, from 1, if `lines` was asked for.
    """

    job_id: JobId
    start: int
    end: int
    size: int
    final: bool
    text: str
    line: int | None = None


class FoundLine(msgspec.Struct):
    """A line of a log: its number from 1, the offset of its first byte, and its first 300 bytes."""

    line: int
    offset: int
    text: str


class SearchPlace(msgspec.Struct):
    """Where a search goes on: a line, and the offset of its first byte."""

    offset: int
    line: int


class SearchAnswer(msgspec.Struct, kw_only=True):
    """Lines that were found in a job's log. `next`: where the search goes on; null: it reached the end."""

    job_id: JobId
    size: int
    found: list[FoundLine]
    next: SearchPlace | None


class DiagnosisEvidence(msgspec.Struct, kw_only=True):
    """A fact, mostly a line of the log. `source`: log, record, gpu, memory, disk or history.

    `line`: number of the line, null if not counted; `offset`: of its first byte; `rank`: the process of a
    launch that wrote it.
    """

    text: str
    line: int | None
    rank: int | None
    source: str
    offset: int | None = None


class DiagnosisFrame(msgspec.Struct, kw_only=True):
    """The innermost line of the user's own code in a traceback."""

    file: str
    line: int
    function: str
    code: str


class DiagnosisFinding(msgspec.Struct, kw_only=True):
    """A cause, with what it rests on and what to do. `confidence`: certain, likely or possible."""

    cause: str
    summary: str
    confidence: str
    advice: list[str]
    evidence: DiagnosisEvidence | None
    frame: DiagnosisFrame | None
    support: list[DiagnosisEvidence]
    figures: dict[str, float] | None


class DiagnosisAnswer(msgspec.Struct, kw_only=True):
    """Why a job ended: the most probable cause first. `cause` is null if none is known.

    `last_lines`: of its log. `log_error`: why the log could not be read. `failed_tasks`: of an array.
    """

    job: JobId
    state: State
    reason: str | None
    exit_code: int | None
    cause: str | None
    findings: list[DiagnosisFinding]
    last_lines: list[str]
    log_error: str | None
    failed_tasks: list[JobId] = []


class EnvironmentAnswer(msgspec.Struct, kw_only=True):
    """Variables of a submitted environment that a diagnosis needs; null: it is not kept any more."""

    job_id: JobId
    uid: int
    variables: dict[str, str] | None


class TerminalAnswer(msgspec.Struct, kw_only=True):
    """The socket of a job's terminal, for its owner alone; null: it has none now."""

    job_id: JobId
    state: State
    path: str | None


class ProfileFolderAnswer(msgspec.Struct, kw_only=True):
    """The folder in which a run takes requests for profiles, the uid of its owner, and its step."""

    job_id: JobId
    uid: int
    path: str
    step: int


class JobFilesAnswer(msgspec.Struct, kw_only=True):
    """Where the files of a job on a cluster are: the folders there and here, and how to reach them.

    `host` is the login node, null for a cluster whose files this machine sees; `ssh_folder` has the socket
    of the connection. `snapshot` is the copy of the project in which the job runs, `below` the job's folder
    in it; `snapshots` the folder here that knows what was sent.
    """

    job_id: JobId
    uid: int
    target: str
    host: str | None
    ssh_folder: str | None
    there: str
    here: str
    snapshot: str | None
    below: str
    snapshots: str
    outputs: list[str]
    started_at: float


class ClusterStep(msgspec.Struct, kw_only=True):
    """How the client runs a command in a job on a cluster: the script for a shell of the login node."""

    target: str
    uid: int
    script: str
    # null: Slurm's commands are on this machine, with this SLURM_CONF.
    host: str | None
    ssh_folder: str | None
    slurm_conf: str | None


class ExecAnswer(msgspec.Struct):
    """The socket of a command. The command starts when a client connects, within half a minute.

    Of a job on a cluster: `step`, and no socket.
    """

    path: str | None
    step: ClusterStep | None = None


class GpuFault(msgspec.Struct):
    """What the driver reported about a GPU while the job had it: `Xid 31`, or why the GPU was drained."""

    gpu: int
    at: str
    text: str


class GpuPeak(msgspec.Struct):
    """The most memory of a job on one GPU, and the size of that GPU (0: unknown), in MiB."""

    gpu: int
    peak_mib: int
    total_mib: int


class EarlierAttempt(msgspec.Struct):
    """An attempt that was followed by another one, and how it ended: `ExitCode:1`."""

    attempt: int
    reason: str


class RunsOnGpu(msgspec.Struct):
    """How other jobs ended that ran on a GPU in the day before; `gpu` null: on all other GPUs together."""

    gpu: int | None
    ended: int
    failed: int
    # Some of those that failed, the latest first.
    jobs: list[JobId]


class EndFacts(msgspec.Struct, kw_only=True):
    """What the daemon knows about the end of a job besides its record; for its owner and operators."""

    gpu_faults: list[GpuFault]
    gpus: list[GpuPeak]
    attempts: list[EarlierAttempt]
    runs: list[RunsOnGpu]
    # Who stopped the job: `cancelled by ann`; null: it was not.
    stopped: str | None
    # PYTORCH_CUDA_ALLOC_CONF of the job; null: not set.
    allocator: str | None


class WhyAnswer(msgspec.Struct, kw_only=True):
    """What blocks a job, its ETA, and options with which it would start now."""

    job: JobId
    state: State
    reason: str | None
    blockers: list[Blocker]
    # null: it cannot be estimated, or only to within weeks.
    start: Start | None
    instead: list[str]
    limits: list[str]
    # Time of the hand-over to another target if the job still waits, in seconds since 1970.
    overflows_at: float | None
    # Time from which the job has a start reservation, in the future or the past.
    promised_at: float | None
    # Why the job can never start: `under the current quota`; null: it can.
    never: str | None = None
    # What comes before it in the queue; null: it does not wait in the queue of this machine.
    ahead: Ahead | None = None
    # Of a job that has ended.
    end: EndFacts | None = None


class RelatedJob(msgspec.Struct, kw_only=True):
    """A job at the other end of a dependency.

    `needs`: what the parent has to do: `succeed`, `succeed (one of them)`, `end`, `fail` or `start`.
    """

    id: JobId
    name: str
    state: State
    needs: str


class DependenciesAnswer(msgspec.Struct, kw_only=True):
    """Jobs that a job waits or waited for, and jobs that wait for it now: the first 50 of each.

    `parents_total`, `children_total`: how many there are.
    """

    job: JobId
    parents: list[RelatedJob]
    parents_total: int
    children: list[RelatedJob]
    children_total: int


class ExpectedStart(msgspec.Struct):
    """When a waiting job is expected to start."""

    id: JobId
    expected_at: str


class StartsAnswer(msgspec.Struct, kw_only=True):
    """Waiting jobs that are expected to start, the soonest first; `total`: how many there are."""

    starts: list[ExpectedStart]
    total: int


class HistoryEntry(msgspec.Struct, kw_only=True):
    """One thing that happened to a job. `by`: who did it; null: gflow itself."""

    at: str
    event: str
    detail: str
    by: str | None
    origin: str


class HistoryAnswer(msgspec.Struct, kw_only=True):
    """The story of a job, the oldest first."""

    job: JobId
    events: list[HistoryEntry]


class Used(msgspec.Struct, kw_only=True):
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


class ProgressPoint(msgspec.Struct, kw_only=True):
    """What a job reported at one time; null what it did not report."""

    at: str
    attempt: int
    step: int
    loss: float | None
    samples_per_s: float | None
    metrics: dict[str, float]


class ProgressAnswer(msgspec.Struct, kw_only=True):
    """The progress of a job over time, the oldest point first; fewer points the older a run is."""

    job: JobId
    points: list[ProgressPoint]


class GpuOnNode(msgspec.Struct):
    """One GPU of a job on a cluster now, as nvidia-smi reports it; null: not reported."""

    gpu: int
    name: str
    busy: int | None
    memory_mib: int | None
    memory_total_mib: int | None
    power_w: float | None
    temperature: int | None


class OnNode(msgspec.Struct, kw_only=True):
    """Usage of a job on one node of a cluster now. `note`: what could not be measured, and why."""

    node: str
    cpus: int
    # CPUs in use in the last second, CPU time so far, memory and number of the job's processes.
    cpus_used: float
    cpu_time_s: float
    memory_mib: int
    processes: int
    gpus: list[GpuOnNode]
    note: str


class ClusterUsage(msgspec.Struct, kw_only=True):
    """What an ended job on a cluster used of its allocation, by Slurm's accounting; null: not recorded."""

    elapsed_s: int
    nodes: int
    cpus: int
    # CPU time of all processes, and its part of the CPU time that the allocation had.
    cpu_time_s: float
    cpu_percent: float | None
    # Peak memory of the largest task, and the memory of the allocation.
    peak_task_mib: int | None
    memory_mib: int | None
    gpus: int
    # Where Slurm records the use of GPUs.
    gpu_percent: float | None


class UsageAnswer(msgspec.Struct, kw_only=True):
    """What a job did with its GPUs: samples, and all of it in one line for each GPU.

    `nodes`: of a job that runs on a cluster, and `ended`: of one that has ended there; then alone.
    """

    job: JobId
    predicted_mib: int | None
    samples: list[Used]
    totals: list[Used]
    nodes: list[OnNode] | None
    ended: ClusterUsage | None = None


def why_view(job: Job, reason: Reason, found: WaitReport) -> WhyAnswer:
    """The wait report of a job; `reason` is that of the job, as the caller may see it."""
    return WhyAnswer(
        job=key_label(job.key),
        state=job.state.value,
        reason=str(reason) or None,
        blockers=found.blockers,
        start=found.start,
        instead=[spell_change(change) for change in found.instead],
        limits=found.limits,
        overflows_at=found.overflows_at,
        promised_at=found.promised_at,
        never=found.never or None,
        ahead=found.ahead,
    )


def history_view(job: Job, entries: Sequence[AuditEntry], name_of: Callable[[int], str]) -> HistoryAnswer:
    """The audit log of a job. `name_of`: the user name of a uid."""
    return HistoryAnswer(job=key_label(job.key), events=[entry_view(entry, name_of) for entry in entries])


def entry_view(entry: AuditEntry, name_of: Callable[[int], str]) -> HistoryEntry:
    """One entry of a job's audit log."""
    return HistoryEntry(
        at=rfc3339(entry.at),
        event=entry.what,
        detail=entry.detail,
        by=None if entry.uid is None else name_of(entry.uid),
        origin=entry.origin,
    )
