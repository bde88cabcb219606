"""Answers about GPUs: drains, restrictions, holders, processes, readings."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gflow.core.model import Block, Gpu, Job
from gflow.core.state.machine import Machine
from gflow.wire.encoding import JobId, key_label


class DrainAnswer(msgspec.Struct, kw_only=True):
    """Whether nothing more starts, at all or on some GPUs, and why."""

    drained: bool
    reason: str | None
    drained_gpus: dict[str, str]


class GpuLine(msgspec.Struct, kw_only=True):
    """A GPU in one line."""

    index: int
    status: Literal["allocated", "idle", "unavailable"]
    notes: list[str]


class GpuLinesAnswer(DrainAnswer):
    """All GPUs, and which of them are drained."""

    gpus: list[GpuLine]


class AllowedAnswer(msgspec.Struct):
    """The GPUs that new jobs may get; null: all."""

    allowed_gpu_indices: list[int] | None


class Ignored(msgspec.Struct, kw_only=True):
    """A process that blocks nothing."""

    gpu_index: int
    pid: int


class IgnoredAnswer(msgspec.Struct):
    """Processes that operators told gflow to ignore."""

    processes: list[Ignored]


class IgnoredNowAnswer(Ignored, kw_only=True):
    """A process, and whether anything changed."""

    changed: bool


class Process(msgspec.Struct):
    """A process on a GPU that is of no job. `tolerated`: why it blocks nothing."""

    pid: int
    user: str
    command: str
    memory_mib: int | None
    tolerated: str


class Holder(msgspec.Struct, kw_only=True):
    """A job that holds a GPU. No id: a hidden job of another user."""

    id: JobId | None
    name: str
    user: str
    used_mib: int | None
    limit_mib: int | None
    # When it started, and when its time limit ends it at the latest.
    started_at: str | None = None
    ends_at: str | None = None


class Reserved(msgspec.Struct):
    """A GPU reservation that has not ended."""

    user: str
    start: str
    end: str


class GpuView(msgspec.Struct, kw_only=True):
    """All about one GPU."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    simulated: bool
    available: bool
    reason: str | None
    jobs: list[JobId]
    used_mib: int | None
    # Readings; a GPU that cannot be read has none of these keys.
    utilisation: int | UnsetType | None = UNSET
    temperature: int | UnsetType | None = UNSET
    power_w: float | UnsetType | None = UNSET
    clock_mhz: int | UnsetType | None = UNSET
    memory_clock_mhz: int | UnsetType | None = UNSET
    slowed: list[str] | UnsetType = UNSET
    pci_bus: str | UnsetType = UNSET
    mig_parent: str | UnsetType | None = UNSET
    idle_s: float | None
    idle_s_at_least: bool
    free_at: str | None
    holders: list[Holder]
    processes: list[Process]
    # Reservations that have not ended, by start.
    reserved: list[Reserved] = []


class InfoAnswer(DrainAnswer):
    """The GPUs. `limits`: what holds the memory limits of jobs that share one.

    `is_isolated`: whether a job can open only its own GPUs; null: all jobs are of one user, or the GPUs are
    simulated. `isolation_problem`: why it can open others.
    """

    gpus: list[GpuView]
    allowed_gpu_indices: list[int] | None
    trouble: str
    driver: str
    limits: list[str]
    is_isolated: bool | None = None
    isolation_problem: str = ""


class GpuPoint(msgspec.Struct, kw_only=True):
    """Means of one GPU over one span of time, from `at` on; null: no reading."""

    at: str
    gpu: int
    busy: float | None
    memory_mib: float | None
    power_w: float | None
    temperature: float | None


class GpuHistoryAnswer(msgspec.Struct, kw_only=True):
    """Readings of the GPUs over time, means over `span_s` seconds, the oldest first."""

    span_s: int
    points: list[GpuPoint]


GpuEventKind = Literal["blocked", "available", "error", "drained", "resumed", "slowed", "restricted", "spot"]


class GpuEvent(msgspec.Struct, kw_only=True):
    """Something that happened to GPUs; no GPU: to the machine. `until`: the end of a slow time."""

    at: str
    until: str | None = None
    kind: GpuEventKind
    gpus: list[int]
    text: str
    # The user who did it; null: the daemon.
    by: str | None = None


class GpuEventsAnswer(msgspec.Struct, kw_only=True):
    """What happened to the GPUs since a time, the newest first."""

    since: str
    events: list[GpuEvent]


def drain_answer(machine: Machine) -> DrainAnswer:
    """The drain state of the machine and of its GPUs."""
    return DrainAnswer(
        drained=machine.is_drained,
        reason=machine.drained_why,
        drained_gpus={str(index): why for index, why in machine.drained.gpus.items()},
    )


def gpu_view(gpu: Gpu, holders: list[Job], why: Block | None = None) -> GpuView:
    """A GPU and the jobs that have it, without readings, idle times and processes, which the daemon adds."""
    return GpuView(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        memory_mib=gpu.memory_mib,
        simulated=gpu.simulated,
        available=not holders and why is None,
        reason=None if why is None else str(why),
        jobs=[key_label(job.key) for job in holders],
        used_mib=None,
        idle_s=None,
        idle_s_at_least=False,
        free_at=None,
        holders=[],
        processes=[],
    )
