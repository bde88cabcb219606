"""GPU memory as NVML and /proc report it to the caller, for machines without a running daemon."""

from __future__ import annotations

from gflow.gpu.nvml import Nvml
from gflow.gpu.owners import Owners
from gflow.gpu.port import Card, Process
from gflow.wire.answers.gpu_memory import GpuMemory, GpuMemoryAnswer, MemoryUse, add_processes, memory_view

NO_DAEMON = "no gflow daemon is running, so jobs are not known"


class LocalMemory:
    """Reads the memory of this machine's GPUs. `trouble`: why there is nothing to read; empty: there is."""

    def __init__(self) -> None:
        self._source = Nvml()
        # No folder has records of runs: without a daemon no process is one of a job.
        self._owners = Owners("/nonexistent")
        look = self._source.look()
        self.trouble = "there is no NVIDIA driver" if look.absent else look.trouble

    def read(self, order: str = "") -> GpuMemoryAnswer:
        """The GPUs with their processes now, in the order of `wire.answers.gpu_memory.add_processes`."""
        cards = self._source.look().cards
        return GpuMemoryAnswer(gpus=[self._gpu(card, order) for card in cards], trouble=NO_DAEMON)

    def _gpu(self, card: Card, order: str) -> GpuMemory:
        used = None if card.problem else card.sample.memory_mib
        view = memory_view(card.number, card.uuid, card.model, card.memory_mib, used)
        add_processes(view, [self._use(one) for one in card.processes], order)
        return view

    def _use(self, process: Process) -> MemoryUse:
        owner = self._owners.of(process.pid)
        return MemoryUse(
            pid=process.pid,
            user=owner.user or "?",
            command=owner.command,
            memory_mib=process.memory_mib,
            is_job=False,
            note="" if owner.is_known else "not visible from here",
        )
