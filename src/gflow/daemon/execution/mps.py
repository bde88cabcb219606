"""NVIDIA's MPS server for jobs that share a GPU: the driver then enforces each job's memory limit.

Opt-in (`gpu.mps`): under MPS a fault of one job can end other jobs on the GPU, and one server serves one
user. The server outlives the daemon, as its jobs do; the next daemon finds it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import subprocess
from pathlib import Path

log = logging.getLogger("gflow.mps")
CONTROL = "nvidia-cuda-mps-control"
ANSWER_S = 10.0
# Longest folder path: a socket path is limited to about 100 characters, and MPS appends a file name.
MAX_PATH = 80


class Mps:
    """One MPS server of this daemon's user."""

    def __init__(self, data: Path, tag: str) -> None:
        folder = data / "mps"
        self._folder = folder if len(str(folder)) <= MAX_PATH else Path(f"/tmp/gflow-mps-{tag}")
        self.ready = False
        # Why it is not ready, for users.
        self.trouble = ""

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self._folder / "log"),
        }

    async def begin(self) -> None:
        """Start a server or find a running one. Without one, only the framework variables limit jobs."""
        self.trouble = await asyncio.to_thread(self._start)
        self.ready = not self.trouble
        if self.trouble:
            log.warning("no MPS server: %s", self.trouble)

    async def end(self) -> None:
        if self.ready:
            await asyncio.to_thread(self._send, "quit")

    def limits(self, count: int, limit_mib: int) -> dict[str, str]:
        """Variables for a job on `count` GPUs that limit its memory on each of them."""
        pinned = ",".join(f"{ordinal}={limit_mib}M" for ordinal in range(count))
        pipe = self.environment["CUDA_MPS_PIPE_DIRECTORY"]
        return {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": pinned}

    def _start(self) -> str:
        if shutil.which(CONTROL) is None:
            return f"{CONTROL} is not installed"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return f"{self._folder} could have been prepared by another user"
        for name in ("pipe", "log"):
            (self._folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._send("get_server_list") is None:
            try:
                subprocess.run(
                    [CONTROL, "-d"],
                    env=os.environ | self.environment,
                    timeout=ANSWER_S,
                    check=True,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                return f"{CONTROL} -d: {error}"
        return "" if self._send("get_server_list") is not None else f"{CONTROL} does not answer"

    def _send(self, command: str) -> str | None:
        """Send a command to the control process; its output, or None if it does not answer."""
        try:
            done = subprocess.run(
                [CONTROL],
                input=command,
                env=os.environ | self.environment,
                timeout=ANSWER_S,
                capture_output=True,
                text=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout if done.returncode == 0 else None
