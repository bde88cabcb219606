"""The route for GPU memory: the processes on each GPU with their jobs, and what a new job can get."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gflow.core.ids import JobKey, parse_label
from gflow.core.model import Gpu, Job
from gflow.core.state.state import State
from gflow.daemon.api.handlers.gpus import blocked_of
from gflow.daemon.api.request import context_of, parse_number, query_of
from gflow.daemon.api.response import answer
from gflow.daemon.api.visibility import Viewer, viewer_of
from gflow.daemon.context import NAMELESS, Context
from gflow.gpu.census import JobProcess, Report, UnmanagedProcess
from gflow.targets.port import Run
from gflow.text.memory_page import memory_page
from gflow.wire.answers.gpu_memory import GpuMemoryAnswer, MemoryUse, Offer, add_processes, memory_view
from gflow.wire.encoding import key_label
from gflow.wire.queries import GpuMemoryQuery

STRAY = "on a GPU that the job was not given"
NOT_VISIBLE = "not visible from here"


async def list_processes(request: Request) -> Response:
    """GPU memory: used and free, the processes on each GPU with their jobs, and what a new job can get."""
    context, query = context_of(request), query_of(request, GpuMemoryQuery)
    width = parse_number("width", query.width or "0", 0)
    data = gpu_memory(context, viewer_of(request), query.sort)
    return answer(request, lambda: data, lambda: memory_page(data, width))


def gpu_memory(context: Context, viewer: Viewer, order: str = "") -> GpuMemoryAnswer:
    """The memory of all GPUs, as the viewer may see it."""
    state = context.loop.state
    report = context.watch.latest if context.watch else Report()
    blocked, gpus = blocked_of(state, viewer), []
    for gpu in state.machine.gpus.values():
        card = report.cards.get(gpu.index)
        used = None if card is None else card.sample.memory_mib
        view = memory_view(gpu.index, gpu.uuid, gpu.model, gpu.memory_mib, used)
        view.simulated = gpu.simulated
        add_processes(view, _Listing(context, viewer, report, gpu).rows(), order)
        why = blocked.get(gpu.index)
        view.offer = _offer(state, gpu, viewer, "" if why is None else str(why))
        gpus.append(view)
    return GpuMemoryAnswer(gpus=gpus, trouble=state.machine.gpu_trouble)


class _Listing:
    """The rows of one GPU: processes of jobs, other processes, and jobs without a process."""

    def __init__(self, context: Context, viewer: Viewer, report: Report, gpu: Gpu) -> None:
        self._context, self._viewer, self._report, self._gpu = context, viewer, report, gpu
        self._jobs = context.loop.state.jobs

    def rows(self) -> list[MemoryUse]:
        ours = self._report.of_jobs.get(self._gpu.index, [])
        others = self._report.unmanaged.get(self._gpu.index, ())
        notes = {one.pid for one in others}
        rows = [self._of_job(one, STRAY if one.pid in notes else "") for one in ours]
        listed = {one.pid for one in ours}
        rows += [self._unmanaged(one) for one in others if one.pid not in listed]
        return rows + self._unknown(listed | notes) + self._without_process({_key_of(one) for one in ours})

    def _of_job(self, process: JobProcess, note: str) -> MemoryUse:
        key = _key_of(process)
        job = self._jobs.get(key) if key is not None else None
        if job is None:  # it has just ended
            return MemoryUse(
                pid=process.pid, user="?", command="", memory_mib=process.memory_mib, is_job=True, note=note
            )
        command = process.command if self._viewer.sees_details(job) else ""
        return self._row(job, process.pid, command, process.memory_mib, note)

    def _row(self, job: Job, pid: int | None, command: str, memory_mib: int | None, note: str) -> MemoryUse:
        shown, is_seen = self._viewer.redact_job(job), self._viewer.sees_job(job)
        history = self._context.watch.history if self._context.watch else None
        peak = history.peak_mib(Run(job.key, job.attempt).name, self._gpu.index) if history else None
        return MemoryUse(
            pid=pid,
            user=shown.user,
            command=command,
            memory_mib=memory_mib,
            is_job=True,
            job_id=key_label(job.key) if is_seen else None,
            job_name=shown.name if is_seen else None,
            job_peak_mib=peak,
            job_limit_mib=job.spec.gpu_memory_mib if job.spec.shared else None,
            note=note,
        )

    def _unmanaged(self, one: UnmanagedProcess) -> MemoryUse:
        sees = self._viewer.sees_names
        return MemoryUse(
            pid=one.pid,
            user=one.user if sees else NAMELESS,
            command=one.command if sees else "",
            memory_mib=one.memory_mib,
            is_job=False,
            note=f"{one.tolerated}: blocks nothing" if one.tolerated else "",
        )

    def _unknown(self, listed: set[int]) -> list[MemoryUse]:
        """Processes that the driver lists and /proc does not."""
        card = self._report.cards.get(self._gpu.index)
        return [
            MemoryUse(
                pid=one.pid, user="?", command="", memory_mib=one.memory_mib, is_job=False, note=NOT_VISIBLE
            )
            for one in (card.processes if card is not None else ())
            if one.pid not in listed
        ]

    def _without_process(self, present: set[JobKey | None]) -> list[MemoryUse]:
        """Jobs that have this GPU and no process on it: they have not used it yet, or it is simulated."""
        holders = self._context.loop.state.machine.holders.get(self._gpu.index, {})
        is_read = self._gpu.index in self._report.cards
        memory_mib, note = (0, "no process on it") if is_read else (None, "")
        jobs = (self._jobs[key] for key in sorted(holders) if key not in present)
        return [self._row(job, None, "", memory_mib, note) for job in jobs]


def _key_of(process: JobProcess) -> JobKey | None:
    """The job of a process of a run."""
    return parse_label(process.run.rpartition(".")[0])


def _offer(state: State, gpu: Gpu, viewer: Viewer, why: str) -> Offer:
    """What a new job can get on this GPU now."""
    machine = state.machine
    holders = machine.holders.get(gpu.index, {})
    if machine.is_drained:
        why = "the machine is drained"
    elif not why and (alone := next((key for key, limit in holders.items() if not limit), None)):
        why = f"{_title(state.jobs[alone], viewer)} has it alone"
    why = why or _reserved(state, gpu, viewer)
    left = gpu.memory_mib - machine.taken.get(gpu.index, 0) - sum(holders.values())
    if not why and left <= 0:
        why = "the jobs on it have declared all of its memory"
    if why:
        return Offer(memory_mib=0, shared=False, reason=why)
    return Offer(memory_mib=left, shared=bool(holders), reason=None)


def _reserved(state: State, gpu: Gpu, viewer: Viewer) -> str:
    """For which other user this GPU is reserved now; empty: for none."""
    users = (one.user for one in state.reserved.active if gpu.index in one.gpus)
    others = (user for user in users if user != viewer.user)
    return next((f"reserved for {viewer.redact_user(user)}" for user in others), "")


def _title(job: Job, viewer: Viewer) -> str:
    return f"job {viewer.title(job)}" if viewer.sees_job(job) else viewer.title(job)
