"""The answer about everything at a glance: daemon, GPUs, queue, the caller's jobs, what needs attention."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gflow.wire.answers.gpus import GpuView
from gflow.wire.answers.job_details import ExpectedStart
from gflow.wire.answers.jobs import JobView
from gflow.wire.encoding import JobId

GpuStatus = Literal["free", "used", "reserved", "restricted", "blocked"]
Kind = Literal["daemon", "disk", "drained", "gpu", "failed", "idle"]


class GpuCounts(msgspec.Struct, kw_only=True):
    """How many GPUs are in each status. `blocked`: drained, lost, or in use by other processes."""

    total: int
    free: int
    used: int
    reserved: int
    restricted: int
    blocked: int


class WaitingJob(msgspec.Struct, kw_only=True):
    """A waiting job of the caller, and when it is expected to start; null: not known.

    `tasks`: how many tasks of an array wait; 1 for a job.
    """

    id: JobId
    name: str
    gpus: int
    reason: str | None
    expected_start: str | None
    tasks: int = 1


class Attention(msgspec.Struct, kw_only=True):
    """Something that needs attention: what it is, the jobs it is about, and the command to type next."""

    kind: Kind
    text: str
    hint: str
    jobs: list[JobId] = []


class JobLists(msgspec.Struct, kw_only=True):
    """Jobs of all users: those that run, that start next, and that ended last."""

    running: list[JobView]
    # Those with an expected start first, which `starts` has in the same order; of each sweep the first.
    waiting: list[JobView]
    starts: list[ExpectedStart]
    ended: list[JobView]


class OverviewAnswer(msgspec.Struct, kw_only=True):
    """Everything at a glance. Counts are complete; lists of jobs have the first few."""

    version: str
    pid: int
    started_at: str
    uptime_secs: float
    system: bool
    targets: list[str]
    cpu_total: int
    cpu_available: int
    memory_total_mib: int
    memory_available_mib: int
    gpu_counts: GpuCounts
    gpus: list[GpuView]
    running: int
    waiting: int
    held: int
    user: str
    my_running: int
    my_waiting: int
    my_running_jobs: list[JobView]
    my_waiting_jobs: list[WaitingJob]
    attention: list[Attention]
    # With the parameter `lists`.
    lists: JobLists | UnsetType = UNSET


def gpu_status(view: GpuView, now: str) -> GpuStatus:
    """The status of a GPU at `now` (RFC 3339)."""
    if view.holders:
        return "used"
    if view.reason is not None:
        return "restricted" if view.reason == "Restricted" else "blocked"
    is_reserved = any(one.start <= now < one.end for one in view.reserved)
    return "reserved" if is_reserved else "free"


def count_gpus(gpus: list[GpuView], now: str) -> GpuCounts:
    """Count the GPUs by their status at `now`."""
    found = [gpu_status(view, now) for view in gpus]
    return GpuCounts(
        total=len(found),
        free=found.count("free"),
        used=found.count("used"),
        reserved=found.count("reserved"),
        restricted=found.count("restricted"),
        blocked=found.count("blocked"),
    )
