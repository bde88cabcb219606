"""Sample the stack of a Python process with py-spy, where it is installed and permitted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress

from gflow.diagnosis.slow_runs.run_facts import StackUse
from gflow.diagnosis.slow_runs.stack_samples import parse_raw, summarize
from gflow.install_hint import install_hint

RATE = 25
# Seconds that py-spy gets beyond the time that it samples, and bytes of a source file that are read.
GRACE_S = 4.0
SOURCE = 1 << 20


def find_sampler() -> str:
    """The path of py-spy: on PATH, or beside the Python that runs gflow; empty: it is not installed."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")


class StackSampler:
    """py-spy, sampling in the background. The process is not paused."""

    def __init__(self, pid: int, seconds: int) -> None:
        self._pid = pid
        self._seconds = seconds
        self._file = tempfile.NamedTemporaryFile(prefix="gflow-stack-")  # noqa: SIM115
        self._lines: dict[str, list[str]] = {}
        self._missing = ""
        self._spy: subprocess.Popen[bytes] | None = None
        program = find_sampler()
        if not program:
            self._missing = f"py-spy is not installed: {install_hint('spy')}"
            return
        command = [program, "record", "--pid", str(pid), "--duration", str(seconds), "--rate", str(RATE),
                   "--format", "raw", "--threads", "--idle", "--full-filenames", "--nonblocking",
                   "--output", self._file.name]  # fmt: skip
        try:
            self._spy = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except OSError as error:
            self._missing = f"py-spy cannot be started: {error.strerror}"

    def finish(self) -> StackUse:
        """Wait for the samples."""
        if self._spy is None:
            return StackUse(missing=self._missing)
        try:
            _, complaint = self._spy.communicate(timeout=self._seconds + GRACE_S)
        except subprocess.TimeoutExpired:
            self._spy.kill()
            self._spy.communicate()
            return StackUse(missing=f"py-spy did not finish in {self._seconds + GRACE_S:.0f} s")
        with self._file:
            text = self._file.read().decode(errors="replace")
        samples = parse_raw(text)
        if samples:
            return summarize(samples, self._source)._replace(dump=self._dump_command())
        return StackUse(missing=spell_complaint(complaint.decode(errors="replace"), self._pid))

    def _dump_command(self) -> str:
        program = "py-spy" if shutil.which("py-spy") else find_sampler()
        return f"{program} dump --pid {self._pid}"

    def _source(self, file: str, line: int) -> str:
        """A line of a source file, read with the rights of the caller; empty: it cannot be read."""
        if file not in self._lines:
            self._lines[file] = self._read_lines(file)
        lines = self._lines[file]
        return lines[line - 1].strip()[:200] if 0 < line <= len(lines) else ""

    def _read_lines(self, file: str) -> list[str]:
        for path in (file, f"/proc/{self._pid}/root{file}", f"/proc/{self._pid}/cwd/{file}"):
            with suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                with open(fd, "rb") as opened:
                    return opened.read(SOURCE).decode(errors="replace").splitlines()
        return []


def spell_complaint(text: str, pid: int) -> str:
    """Why py-spy has no samples, in a sentence."""
    lowered = text.lower()
    if "permission denied" in lowered or "operation not permitted" in lowered:
        return f"the kernel permits py-spy only to root here (ptrace_scope): sudo py-spy dump --pid {pid}"
    if "failed to find a python" in lowered or "python version" in lowered:
        return f"process {pid} is not a Python program"
    lines = [line.removeprefix("Error: ").strip() for line in text.splitlines() if line.strip()]
    return f"py-spy has no samples: {lines[-1][:160]}" if lines else "py-spy has no samples"
