"""Answers about one job: log, terminal, wait report, audit log, GPU usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gflow.core.forecast.explain import Blocker
from gflow.core.forecast.start_time import Start
from gflow.core.forecast.wait_report import WaitReport
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


class TerminalAnswer(msgspec.Struct, kw_only=True):
    """The socket of a job's terminal, for its owner alone; null: it has none now."""

    job_id: JobId
    state: State
    path: str | None


class ExecAnswer(msgspec.Struct):
    """The socket of a command. The command starts when a client connects, within half a minute."""

    path: str


class WhyAnswer(msgspec.Struct, kw_only=True):
    """What blocks a job, its ETA, and options with which it would start now."""

    job: JobId
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
    # Why the job can never start: `under the current quota`; null: it can.
    never: str | None = None


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


class UsageAnswer(msgspec.Struct, kw_only=True):
    """What a job did with its GPUs: samples, and all of it in one line for each GPU.

    `nodes`: of a job that runs on a cluster, and then alone.
    """

    job: JobId
    predicted_mib: int | None
    samples: list[Used]
    totals: list[Used]
    nodes: list[OnNode] | None


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
