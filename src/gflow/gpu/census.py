"""The GPU census: which GPUs exist, which processes are on them, and which may be given to jobs.

Conservative: an unmanaged process blocks its GPU, and so does a process that cannot be identified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gflow.core.model import Block, Gpu
from gflow.gpu.health import Health
from gflow.gpu.numbering import Numbering
from gflow.gpu.owners import ProcessOwners
from gflow.gpu.port import Card, Look, Process
from gflow.gpu.settings import GpuSettings

# A process that cannot be identified counts only when it is seen this often in a row: it may have just ended.
LOOKS_TO_CONFIRM = 2
# Memory of unmanaged processes is rounded up to this step, so that small changes are not reported.
STEP_MIB = 256


class UnmanagedProcess(NamedTuple):
    """An unmanaged process on a GPU. `tolerated`: why it does not block the GPU; empty: it does."""

    pid: int
    user: str
    command: str
    memory_mib: int | None
    tolerated: str = ""


class JobProcess(NamedTuple):
    """A process of a run on a GPU."""

    pid: int
    run: str
    command: str
    memory_mib: int | None


class Report(NamedTuple):
    """The result of one census, by GPU index."""

    gpus: tuple[Gpu, ...] = ()
    blocked: dict[int, Block] = {}
    taken: dict[int, int] = {}
    trouble: str = ""
    cards: dict[int, Card] = {}
    unmanaged: dict[int, tuple[UnmanagedProcess, ...]] = {}
    # Run -> GPU -> MiB that its processes use there.
    used: dict[str, dict[int, int]] = {}
    # GPU -> the processes of runs there.
    of_jobs: dict[int, list[JobProcess]] = {}
    # GPUs with processes that cannot be identified.
    unclear: frozenset[int] = frozenset()
    xids: tuple[tuple[int, int], ...] = ()
    driver: str = ""
    # UUID -> the fault of that card, until an operator resumes it; None: not known yet.
    faults: dict[str, str] | None = None


class Census:
    """Turns each look at the driver into a report, and keeps what the next one needs. Used by one thread."""

    def __init__(
        self,
        settings: GpuSettings,
        owners: ProcessOwners,
        numbering: Numbering,
        faults: Mapping[str, str] | None = None,
    ) -> None:
        """`faults`: faults that an earlier daemon found and no operator has cleared."""
        self._settings = settings
        self._owners = owners
        self._numbering = numbering
        self._health = {uuid: Health(settings, fault) for uuid, fault in (faults or {}).items()}
        self._times_seen: dict[tuple[str, int], int] = {}
        # GPUs whose faults are cleared at the next look.
        self.resumed: frozenset[int] = frozenset()
        # (GPU, pid, start time) of processes that an operator told gflow to ignore.
        self.ignored: frozenset[tuple[int, int, int]] = frozenset()

    def take(self, look: Look, holders: Mapping[int, tuple[str, ...]], now: float) -> Report:
        """Make the report of a look. `holders`: GPU -> the runs that have it."""
        self._numbering.see(look.cards, holders.keys())
        self._clear_faults()
        report = self._make_report(look, holders, now)
        return report._replace(faults={uuid: one.fault for uuid, one in self._health.items() if one.fault})

    def _clear_faults(self) -> None:
        """Clear the faults of the GPUs that an operator resumed."""
        resumed, self.resumed = self.resumed, frozenset()
        for uuid, health in self._health.items():
            if self._numbering.number_of(uuid) in resumed:
                health.clear_fault()

    def _make_report(self, look: Look, holders: Mapping[int, tuple[str, ...]], now: float) -> Report:
        gpus = self._numbering.gpus
        if look.trouble:
            if look.absent and not gpus:
                return Report()
            why = Block("CannotTell", look.trouble)
            return Report(gpus, {gpu.index: why for gpu in gpus}, trouble=look.trouble)
        self._note_xids(look)
        scene = _Scene({card.uuid: card for card in look.cards})
        for gpu in gpus:
            self._judge(gpu, scene, holders, now)
        self._owners.keep(process.pid for card in look.cards for process in card.processes)
        self._times_seen = scene.times_seen
        numbers = ((self._numbering.number_of(uuid), xid) for uuid, xid in look.xids)
        known = tuple((at, xid) for at, xid in numbers if at is not None)
        return scene.report(gpus, known)._replace(driver=look.driver)

    def used_by_runs(self, processes: tuple[Process, ...]) -> dict[str, int]:
        """MiB that each run uses, for the samples between two looks."""
        used: dict[str, int] = {}
        for process in processes:
            run = self._owners.of(process.pid).run
            if run:
                used[run] = used.get(run, 0) + (process.memory_mib or 0)
        return used

    def identify(self, pid: int) -> int | None:
        """The start time of this process, which distinguishes it from a later one with the same pid."""
        return self._owners.started(pid)

    def _health_of(self, uuid: str) -> Health:
        return self._health.setdefault(uuid, Health(self._settings))

    def _note_xids(self, look: Look) -> None:
        for uuid, number in look.xids:
            slices = [card.uuid for card in look.cards if card.parent == uuid]
            for each in slices or [uuid]:
                self._health_of(each).xid(number)

    def _related(self, gpu: Gpu, holders: Mapping[int, tuple[str, ...]]) -> str:
        """What a job still holds of this card from before its MIG layout changed, as text; empty: nothing."""
        if gpu.parent and self._numbering.number_of(gpu.parent) in holders:
            return "a job still has the whole card"
        for uuid in self._numbering.slices_of(gpu.uuid):
            if self._numbering.number_of(uuid) in holders:
                return f"a job still has its slice {uuid}"
        return ""

    def _judge(self, gpu: Gpu, scene: _Scene, holders: Mapping[int, tuple[str, ...]], now: float) -> None:
        card = scene.by_uuid.get(gpu.uuid)
        if card is None or card.problem:
            scene.blocked[gpu.index] = Block("Lost", card.problem if card else "it is missing")
            return
        scene.cards[gpu.index] = card
        self._count(gpu, card, scene, holders.get(gpu.index, ()))
        related = self._related(gpu, holders)
        if related:
            scene.blocked[gpu.index] = Block("Unmanaged", related)
        unhealthy = self._health_of(gpu.uuid).judge(card, now)
        if unhealthy:
            scene.blocked[gpu.index] = Block("Unhealthy", unhealthy)

    def _count(self, gpu: Gpu, card: Card, scene: _Scene, runs: tuple[str, ...]) -> None:
        """Sort the processes on this GPU: of our runs, unmanaged, and not identified."""
        unmanaged: list[UnmanagedProcess] = []
        for process in card.processes:
            owner = self._owners.of(process.pid)
            if owner.run:
                scene.add_use(owner.run, gpu.index, process, owner.command)
                if owner.run not in runs and self._stays(gpu, process, scene):
                    unmanaged.append(self._stray(gpu, process, owner.run))
            elif (
                owner.is_known
                and len(runs) == 1
                and owner.contained
                and self._started_by(runs[0], owner.started)
            ):
                scene.add_use(runs[0], gpu.index, process, owner.command)
            elif owner.is_known:
                tolerated = self._tolerated(gpu.index, process, owner.started, is_mps=owner.is_mps)
                unmanaged.append(
                    UnmanagedProcess(process.pid, owner.user, owner.command, process.memory_mib, tolerated)
                )
            else:
                self._count_unknown(gpu, process, scene, runs)
        self._block(gpu.index, unmanaged, scene)

    def _stays(self, gpu: Gpu, process: Process, scene: _Scene) -> bool:
        """Whether an unexpected process has been seen often enough to count: it may be about to end."""
        seen = self._times_seen.get((gpu.uuid, process.pid), 0) + 1
        scene.times_seen[gpu.uuid, process.pid] = seen
        return seen >= LOOKS_TO_CONFIRM

    def _stray(self, gpu: Gpu, process: Process, run: str) -> UnmanagedProcess:
        """A process of a job on a GPU that the job was not given: there it counts as unmanaged."""
        what = f"job {run.rpartition('.')[0]}, which was not given this GPU"
        tolerated = self._tolerated(gpu.index, process, self._owners.started(process.pid) or 0)
        return UnmanagedProcess(process.pid, "gflow", what, process.memory_mib, tolerated)

    def _count_unknown(self, gpu: Gpu, process: Process, scene: _Scene, runs: tuple[str, ...]) -> None:
        """Count a pid that does not exist here: it is in another pid namespace, or has just ended."""
        if not self._stays(gpu, process, scene):
            return
        scene.unclear.add(gpu.index)
        if len(runs) == 1:  # attribute it to the only job that has this GPU
            scene.add_use(runs[0], gpu.index, process)
        elif not runs and self._tolerated(gpu.index, process, 0) == "":
            scene.blocked[gpu.index] = Block("CannotTell", f"process {process.pid} is not visible here")

    def _started_by(self, run: str, started: int) -> bool:
        """Whether a process in a container may belong to this run: it started later, and the run has a client
        of a container engine among its processes."""
        shim = self._owners.shim_of(run)
        since = self._owners.started(shim) if shim else None
        return (
            since is not None and shim is not None and started >= since and self._owners.runs_containers(shim)
        )

    def _tolerated(self, index: int, process: Process, started: int, *, is_mps: bool = False) -> str:
        if (index, process.pid, started) in self.ignored:
            return "ignored"
        if is_mps:
            return "an MPS server"
        few = self._settings.unmanaged_memory_mb
        if process.graphics:
            few = max(few, self._settings.unmanaged_graphics_mb)
        return "small" if process.memory_mib is not None and process.memory_mib <= few and few else ""

    def _block(self, index: int, unmanaged: list[UnmanagedProcess], scene: _Scene) -> None:
        if not unmanaged:
            return
        scene.unmanaged[index] = tuple(unmanaged)
        taken = sum(process.memory_mib or 0 for process in unmanaged if process.tolerated)
        if taken:
            scene.taken[index] = -(-taken // STEP_MIB) * STEP_MIB
        bad = [process for process in unmanaged if not process.tolerated]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            first = bad[0]
            text = f"{first.user}, {first.command} (pid {first.pid}){more}"
            scene.blocked[index] = Block("Unmanaged", text)


class _Scene:
    """Intermediate results of one census."""

    def __init__(self, by_uuid: dict[str, Card]) -> None:
        self.by_uuid = by_uuid
        self.blocked: dict[int, Block] = {}
        self.taken: dict[int, int] = {}
        self.cards: dict[int, Card] = {}
        self.unmanaged: dict[int, tuple[UnmanagedProcess, ...]] = {}
        self.used: dict[str, dict[int, int]] = {}
        self.of_jobs: dict[int, list[JobProcess]] = {}
        self.unclear: set[int] = set()
        self.times_seen: dict[tuple[str, int], int] = {}

    def add_use(self, run: str, index: int, process: Process, command: str = "") -> None:
        of_run = self.used.setdefault(run, {})
        of_run[index] = of_run.get(index, 0) + (process.memory_mib or 0)
        found = JobProcess(process.pid, run, command, process.memory_mib)
        self.of_jobs.setdefault(index, []).append(found)

    def report(self, gpus: tuple[Gpu, ...], xids: tuple[tuple[int, int], ...]) -> Report:
        return Report(
            gpus, self.blocked, self.taken, "", self.cards, self.unmanaged, self.used, self.of_jobs,
            frozenset(self.unclear), xids,
        )  # fmt: skip
