"""The answer about GPU memory: the processes on each GPU, their jobs, and the memory left for new jobs."""

from __future__ import annotations

import msgspec

from gflow.wire.encoding import JobId


class MemoryUse(msgspec.Struct, kw_only=True):
    """Memory of one process on a GPU; or, with `pid` null, a job there without a known process.

    `is_job`: whether it belongs to a job of gflow. A job without an id is a hidden one of another user.
    """

    pid: int | None
    user: str
    # Empty: hidden or unknown.
    command: str
    # null: the driver does not say.
    memory_mib: int | None
    is_job: bool
    job_id: JobId | None = None
    job_name: str | None = None
    # The most that its job used on this GPU, and the limit of a job that shares it.
    job_peak_mib: int | None = None
    job_limit_mib: int | None = None
    note: str = ""


class Offer(msgspec.Struct, kw_only=True):
    """Memory that a new job can get on a GPU now; 0: none, and `reason` says why.

    `shared`: only a job with --shared, beside those that are there.
    """

    memory_mib: int
    shared: bool
    reason: str | None


class GpuMemory(msgspec.Struct, kw_only=True):
    """The memory of one GPU. `used_mib` null: it cannot be read, as of a simulated GPU."""

    index: int
    uuid: str
    model: str
    simulated: bool
    memory_mib: int
    used_mib: int | None
    free_mib: int | None
    # Used by none of the processes: contexts of the driver, or processes that it does not list.
    other_mib: int | None
    processes: list[MemoryUse]
    # null without a daemon, which alone knows it.
    offer: Offer | None


class GpuMemoryAnswer(msgspec.Struct, kw_only=True):
    """The memory of all GPUs. `trouble`: why the GPUs cannot be read; empty: they can."""

    gpus: list[GpuMemory]
    trouble: str


def memory_view(index: int, uuid: str, model: str, memory_mib: int, used_mib: int | None) -> GpuMemory:
    """A GPU without processes and without an offer."""
    return GpuMemory(
        index=index,
        uuid=uuid,
        model=model,
        simulated=False,
        memory_mib=memory_mib,
        used_mib=used_mib,
        free_mib=None if used_mib is None else max(0, memory_mib - used_mib),
        other_mib=None,
        processes=[],
        offer=None,
    )


def add_processes(view: GpuMemory, processes: list[MemoryUse], order: str) -> None:
    """Put the processes into the view, sorted: by memory, most first, or by pid, user or job."""
    view.processes = sorted(processes, key=lambda one: _sort_key(one, order))
    if view.used_mib is not None:
        view.other_mib = max(0, view.used_mib - sum(one.memory_mib or 0 for one in processes))


def _sort_key(one: MemoryUse, order: str) -> tuple[object, ...]:
    by_memory = (-(one.memory_mib or 0), one.pid or 0)
    if order == "pid":
        return (one.pid or 0,)
    if order == "user":
        return (one.user, *by_memory)
    if order == "job":  # processes of no job come last
        return (not one.is_job, str(one.job_id or "").rjust(30), *by_memory)
    return by_memory
