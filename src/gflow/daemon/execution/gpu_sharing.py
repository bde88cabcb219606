"""Memory limits for jobs that share a GPU: variables for their framework, and MPS limits."""

from __future__ import annotations

import asyncio
import os

from gflow.core.model import Gpu, Job
from gflow.daemon.execution.mps import Mps
from gflow.gpu.frameworks import shared_environment, torch_takes_fraction

# Identifies a job's Python installation: PATH, HOME, program, working directory.
Installation = tuple[str, str, str, str]


class Sharing:
    """Remembers for each Python installation whether its PyTorch accepts a memory limit."""

    def __init__(self, mps: Mps | None = None, *, looks: bool = True) -> None:
        self.mps = mps
        # Whether installations are inspected: a daemon of root opens no files of users.
        self._looks = looks
        self._torch: dict[Installation, bool] = {}

    def knows(self, job: Job, environ: bytes) -> bool:
        """Whether the job can start without `inspect`."""
        return not self._looks or _installation(job, _variables(environ)) in self._torch

    async def inspect(self, job: Job, environ: bytes) -> None:
        """Inspect the job's Python installation, in a thread: its files may be on a slow disk."""
        variables = _variables(environ)
        found = await asyncio.to_thread(torch_takes_fraction, job.spec.command, variables, job.spec.cwd)
        self._torch[_installation(job, variables)] = found

    def environment(self, job: Job, gpus: list[Gpu], environ: bytes) -> dict[str, str]:
        """The variables that limit this job."""
        if not job.spec.shared or not gpus:
            return {}
        variables = _variables(environ)
        limit = job.spec.gpu_memory_mib
        torch = self._torch.get(_installation(job, variables), False)
        memories = [gpu.memory_mib for gpu in gpus]
        found = shared_environment(limit, memories, variables, torch=torch)
        if self.mps is not None and self.mps.ready:
            found |= self.mps.limits(len(gpus), limit)
        return found


def _installation(job: Job, variables: dict[str, str]) -> Installation:
    program = job.spec.command[0] if job.spec.command else ""
    return variables.get("PATH", ""), variables.get("HOME", ""), program, job.spec.cwd


def _variables(environ: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
