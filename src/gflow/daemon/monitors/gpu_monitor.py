"""Polls the GPUs in a thread of its own, so that a hanging driver does not block the daemon.

A full poll runs once a second. In between, GPUs that jobs share are polled as often as 0.5 % of a core
allows: a job that exceeds its memory limit is killed before it harms the other jobs on the GPU.
The thread passes reports to the loop; the loop turns changes into events.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from gflow.core.events import GpusSeen, Overran
from gflow.core.ids import JobKey
from gflow.core.lifecycle.limits import idle_limit_s
from gflow.core.model import Block, Gpu, Moment, Spec
from gflow.core.state.state import State
from gflow.daemon.monitors.gpu_samples import History, SampleRetention
from gflow.daemon.settings import Settings
from gflow.gpu.census import Census, Report
from gflow.gpu.numbering import Numbering
from gflow.gpu.nvml import Nvml
from gflow.gpu.owners import ProcessOwners
from gflow.gpu.port import GpuSource, Look
from gflow.targets.port import Run

log = logging.getLogger("gflow.gpus")
ANOTHER_USER = "a process of another user"
# Seconds between polls while there is no GPU.
ABSENT_S = 5.0
# Polls of shared GPUs: the share of CPU time they may use, and the bounds of the interval in seconds.
QUICK_SHARE = 0.005
QUICK_LEAST_S = 0.05
QUICK_MOST_S = 0.4


class SharedRun(NamedTuple):
    """A run that shares a GPU, and its memory limit there."""

    key: JobKey
    attempt: int
    run: str
    gpu: int
    uuid: str
    limit_mib: int


class HeldRun(NamedTuple):
    """A run that holds GPUs. `kind` is equal for runs of the same command (see `kind_of`). The run is stopped
    when it has used none of its GPUs for `idle_limit_s`, unless that is 0."""

    key: JobKey
    attempt: int
    kind: str
    idle_limit_s: int


class WatchedRuns(NamedTuple):
    """The data about jobs that the thread uses."""

    holders: Mapping[int, tuple[str, ...]] = {}
    shared: tuple[SharedRun, ...] = ()
    runs: Mapping[str, HeldRun] = {}


class GpuWatch:
    """The polling thread and its latest report. `_run` and the methods after it run in the thread."""

    def __init__(
        self,
        source: GpuSource,
        census: Census,
        look_s: float,
        patience_s: float,
        seen: Callable[[Report], None],
        overran: Callable[[SharedRun, int], None],
        watched: Callable[[], WatchedRuns],
        history: History | None = None,
        looked: Callable[[Report, WatchedRuns], None] | None = None,
    ) -> None:
        self._looked = looked
        self.history = history
        self.latest = Report()
        self.census = census
        self._source = source
        self._look_s = look_s
        self._patience_s = patience_s
        self._seen = seen
        self._overran = overran
        self._ask = watched
        self._watched = WatchedRuns()
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._silence: asyncio.TimerHandle | None = None
        self._wake = threading.Event()
        self._closing = False
        self._hurry = False
        self.quick_s = QUICK_MOST_S
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    async def begin(self) -> None:
        """Start polling; returns after the first report, or when the driver has not answered in time."""
        self._watched = self._ask()
        self._listen()
        self._thread.start()
        await self._first

    def close(self) -> None:
        """Stop polling. A thread that hangs in the driver is abandoned; it ends with the process."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=1.0)
        if self.history is not None and not self._thread.is_alive():
            self.history.close(time.time())
        if self._silence is not None:
            self._silence.cancel()

    def clear_faults(self, gpus: Iterable[int]) -> None:
        """Clear the recorded faults of these GPUs (`gctl resume`)."""
        self.census.resumed |= frozenset(gpus)
        self.look_now()

    @property
    def ignored(self) -> frozenset[tuple[int, int, int]]:
        """(GPU, pid, start time) of processes that do not block their GPU."""
        return self.census.ignored

    def ignore(self, gpu: int, pid: int) -> bool:
        """Do not let this process block this GPU any more; False if it was ignored already."""
        return self._ignore(self.ignored | {(gpu, pid, self.census.identify(pid) or 0)})

    def unignore(self, gpu: int, pid: int) -> bool:
        return self._ignore(frozenset(one for one in self.ignored if one[:2] != (gpu, pid)))

    def _ignore(self, ignored: frozenset[tuple[int, int, int]]) -> bool:
        before, self.census.ignored = self.census.ignored, ignored
        self.look_now()
        return ignored != before

    def look_now(self) -> None:
        """Poll without waiting for the next interval."""
        self._hurry = True
        self._wake.set()

    def refresh(self) -> None:
        """Pass started and ended jobs to the thread; poll at once if a job that shares a GPU is new."""
        watched = self._ask()
        if watched != self._watched:
            added = set(watched.shared) - set(self._watched.shared)
            self._watched = watched
            if added:
                self._wake.set()

    # ------------------------------------------------------------ reports, in the loop

    def _on_report(self, report: Report) -> None:
        self._listen()
        self._report(report)
        if self._looked is not None:
            self._looked(report, self._watched)

    def _listen(self) -> None:
        """Restart the timeout for the next report."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(self._patience_s, self._no_answer)

    def _no_answer(self) -> None:
        """The driver hangs: block all GPUs, so that no job is placed on them."""
        text = f"the NVIDIA driver has not answered for {self._patience_s:g} s"
        log.error("%s; GPUs are given out again when it does", text)
        blocked = {gpu.index: Block("CannotTell", text) for gpu in self.latest.gpus}
        self._report(Report(self.latest.gpus, blocked, trouble=text))

    def _report(self, report: Report) -> None:
        before, self.latest = self.latest, report
        for uuid, fault in (report.faults or {}).items():
            if uuid not in (before.faults or {}):
                log.warning("%s: %s; it gets no new jobs until gctl resume --gpu", uuid, fault)
        if not self._first.done():
            self._first.set_result(None)
        elif _relevant(report) != _relevant(before):
            self._seen(report)
        self.refresh()

    # ------------------------------------------------------------ polling, in the thread

    def _run(self) -> None:
        while not self._closing:
            begun, self._hurry = time.monotonic(), False
            report = self._look()
            self._call_loop(self._on_report, report)
            if self.history is not None:
                watched = self._watched
                kinds = {run: held.kind for run, held in watched.runs.items()}
                self.history.take(report, watched.holders, kinds, time.time())
            for one in self._watched.shared:
                self._compare(one, report.used.get(one.run, {}).get(one.gpu, 0))
            until = begun + (self._look_s if report.gpus else ABSENT_S)
            while not self._closing and not self._hurry and (left := until - time.monotonic()) > 0:
                self._wait(left)

    def _wait(self, left: float) -> None:
        """Wait for the next full poll; if jobs share GPUs, poll those meanwhile."""
        if not self._watched.shared:
            self._wake.wait(left)
            self._wake.clear()
            return
        self._wake.wait(min(left, self.quick_s))
        self._wake.clear()
        begun = time.thread_time()
        try:
            self._quick_look()
        except Exception:
            log.exception("a poll of shared GPUs failed")
        cost = time.thread_time() - begun
        self.quick_s = min(QUICK_MOST_S, max(QUICK_LEAST_S, cost / QUICK_SHARE))

    def _look(self) -> Report:
        """A full poll. An error becomes a report with `trouble`; polling continues."""
        try:
            return self.census.take(self._source.look(), self._watched.holders, time.monotonic())
        except Exception as error:
            log.exception("a poll of the GPUs failed")
            return self.census.take(
                Look(trouble=f"the GPUs cannot be polled: {error!r}"), {}, time.monotonic()
            )

    def _quick_look(self) -> None:
        """Poll only the memory use of the GPUs that jobs share."""
        by_uuid: dict[str, list[SharedRun]] = {}
        for one in self._watched.shared:
            by_uuid.setdefault(one.uuid, []).append(one)
        for uuid, shared in by_uuid.items():
            used = self.census.used_by_runs(self._source.processes(uuid))
            for one in shared:
                self._compare(one, used.get(one.run, 0))

    def _compare(self, one: SharedRun, used_mib: int) -> None:
        if used_mib > one.limit_mib:
            self._call_loop(self._overran, one, used_mib)

    def _call_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call `callback` in the loop's thread; if the loop is closed, stop polling."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            self._closing = True


def _relevant(report: Report) -> tuple[object, ...]:
    """The fields of a report that the engine uses."""
    return report.gpus, report.blocked, report.taken, report.trouble, report.faults


def watch_of(
    settings: Settings,
    state: State,
    owners: ProcessOwners,
    seen: Callable[[Report], None],
    overran: Callable[[SharedRun, int], None],
    watched: Callable[[], WatchedRuns],
    looked: Callable[[Report, WatchedRuns], None],
) -> GpuWatch:
    """The monitor of this machine's NVIDIA GPUs."""
    census = Census(settings.gpu, owners, numbering_of(state), state.machine.faults)
    look_s = settings.config["daemon.gpu_poll_interval_secs"]
    patience_s = max(settings.gpu.patience_s, 2 * look_s)
    retention = SampleRetention(settings.config["retention.samples_days"], settings.retention.jobs_days)
    history = History(settings.samples, retention)
    return GpuWatch(Nvml(), census, look_s, patience_s, seen, overran, watched, history, looked)


def watched_of(state: State) -> WatchedRuns:
    """The data about jobs that the polling thread uses."""
    holders, shared, held = {}, [], {}
    for index, keys in state.machine.holders.items():
        runs = []
        for key, limit in keys.items():
            job = state.jobs[key]
            run = Run(key, job.attempt)
            runs.append(run.name)
            held[run.name] = HeldRun(key, run.attempt, kind_of(job.uid, job.spec), idle_limit_s(state, job))
            if limit and index in state.machine.gpus:
                shared.append(
                    SharedRun(key, run.attempt, run.name, index, state.machine.gpus[index].uuid, limit)
                )
        holders[index] = tuple(runs)
    return WatchedRuns(holders, tuple(shared), held)


@lru_cache(maxsize=1024)
def kind_of(uid: int, spec: Spec) -> str:
    """A digest that is equal for runs of the same command of one user: they probably need as much memory.
    Runs with different predictions differ: they have another plan."""
    fields: tuple[object, ...] = (uid, spec.command, spec.script, spec.script_path, spec.parameters)
    text = repr((*fields, spec.predicted_mib) if spec.predicted_mib else fields)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def seen_of(report: Report, at: Moment, *, is_private: bool = False) -> GpusSeen:
    """The event of a report. `is_private`: without the owners of processes on the GPUs."""
    blocked = report.blocked
    if is_private:
        blocked = {
            index: Block(why.kind, ANOTHER_USER) if why.kind == "Unmanaged" else why
            for index, why in blocked.items()
        }
    return GpusSeen(
        at=at,
        gpus=report.gpus,
        blocked=blocked,
        taken=report.taken,
        trouble=report.trouble,
        faults=report.faults,
    )


def overran_of(one: SharedRun, used_mib: int, at: Moment) -> Overran:
    return Overran(at=at, key=one.key, attempt=one.attempt, gpu=one.gpu, used_mib=used_mib)


def names_of(text: str) -> dict[int, str]:
    """GPU number -> UUID, from the stored `gpu_names`."""
    pairs = (part.split("=", 1) for part in text.split(",") if part)
    return {int(index): uuid.partition("@")[0] for index, uuid in pairs}


def parents_of(text: str) -> dict[str, str]:
    """UUID of a MIG slice -> UUID of its card, from the stored `gpu_names`."""
    names = (part.partition("=")[2].partition("@") for part in text.split(","))
    return {uuid: parent for uuid, _, parent in names if parent}


def numbering_of(state: State) -> Numbering:
    """The numbers that an earlier daemon gave to the GPUs of running jobs."""
    held = {
        uuid: index
        for index, uuid in names_of(state.machine.gpu_names).items()
        if index in state.machine.holders
    }
    return Numbering(held, parents_of(state.machine.gpu_names))


def visible_devices(gpus: list[Gpu], by: str, *, is_isolated: bool = False) -> str:
    """CUDA_VISIBLE_DEVICES for these GPUs: indices, or UUIDs where CUDA numbers them differently.

    `is_isolated`: the job can open no others, and CUDA counts only what it can open.
    """
    has_cuda_numbers = all(gpu.simulated or (gpu.number == gpu.index and not gpu.parent) for gpu in gpus)
    if is_isolated:
        has_cuda_numbers &= [gpu.index for gpu in gpus] == list(range(len(gpus)))
    if by == "index" and has_cuda_numbers:
        return ",".join(str(gpu.index) for gpu in gpus)
    return ",".join(gpu.uuid for gpu in gpus)
