"""What jobs that share a GPU get, so that they keep to what they said: words to their framework, MPS."""

from __future__ import annotations

import asyncio
import os

from gflow.core.model import Gpu, Job
from gflow.daemon.execution.mps import Mps
from gflow.gpu.frameworks import shared_environment, torch_takes_fraction

# What a job's PyTorch is told apart by: where its Python may come from.
Place = tuple[str, str, str, str]


class Sharing:
    """Knows, for each Python that jobs use, whether its PyTorch can be told a limit."""

    def __init__(self, mps: Mps | None = None, *, looks: bool = True) -> None:
        self.mps = mps
        # Whether we look at all: as root we open no file of somebody else's.
        self._looks = looks
        self._torch: dict[Place, bool] = {}

    def knows(self, job: Job, environ: bytes) -> bool:
        return not self._looks or _place(job, _text(environ)) in self._torch

    async def learn(self, job: Job, environ: bytes) -> None:
        """Look at the job's Python, in a thread: its files may be on a slow disk."""
        variables = _text(environ)
        found = await asyncio.to_thread(torch_takes_fraction, job.spec.command, variables, job.spec.cwd)
        self._torch[_place(job, variables)] = found

    def environment(self, job: Job, gpus: list[Gpu], environ: bytes) -> dict[str, str]:
        """Variables for this job."""
        if not job.spec.shared or not gpus:
            return {}
        variables = _text(environ)
        limit = job.spec.gpu_memory_mib
        torch = self._torch.get(_place(job, variables), False)
        memories = [gpu.memory_mib for gpu in gpus]
        told = shared_environment(limit, memories, variables, torch=torch)
        if self.mps is not None and self.mps.ready:
            told |= self.mps.limits(len(gpus), limit)
        return told


def _place(job: Job, variables: dict[str, str]) -> Place:
    program = job.spec.command[0] if job.spec.command else ""
    return variables.get("PATH", ""), variables.get("HOME", ""), program, job.spec.cwd


def _text(environ: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
