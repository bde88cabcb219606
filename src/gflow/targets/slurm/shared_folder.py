"""The shared folder: files that the daemon and the jobs on the nodes exchange.

All files of a run begin with its name, `42.1` or `42_3.1`:

    .ticket       The claim token. The job on the node renames it to `.claim.CANDIDATE.SLURMID` and may then
                  run; gflow renames it to withdraw the run. A rename succeeds for one side only, also on NFS.
    .exit         The job's exit code, and whether it was signalled; written by the job itself.
    .asked        sbatch was called. Before another call the queue must be checked for the first one.
    .stop         The job is asked to stop (GFLOW_STOP_FILE).
    .script       The user's script as it was submitted.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# The claimant in the file name of a token that gflow took to withdraw the run.
GFLOW = "gflow"
MTIME_MARGIN_NS = 3_000_000_000
NAME = re.compile(r"(\d+(?:_\d+)?\.\d+)\.(.+)")


class Claim(NamedTuple):
    """The claimant of a token: the number of the candidate, and the Slurm job id."""

    candidate: int
    id: str


class Exit(NamedTuple):
    """The exit record of a job. `was_signalled`: the job had received a signal."""

    code: int | None
    was_signalled: bool


class RunFiles(NamedTuple):
    """The files of one run. `was_submitted`: sbatch was called; `exit`: an exit record exists."""

    has_token: bool
    was_submitted: bool
    claim: Claim | None
    withdrawn: bool
    exit: bool


class SharedFolder:
    """One shared folder, as the daemon uses it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._mtime_ns = 0

    def daemon_id(self) -> str:
        """The identity of this daemon in job tags. Created once and kept in the folder."""
        path = self.folder / "id"
        with suppress(FileNotFoundError):
            return path.read_text()
        made = uuid.uuid4().hex[:10]
        temporary = self.folder / f"id.{os.getpid()}"
        temporary.write_text(made)
        temporary.rename(path)
        return made

    def path(self, name: str, what: str) -> str:
        return f"{self.folder}/{name}.{what}"

    def has_news(self) -> bool:
        """Whether any file was created or renamed here since the last call."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # open() revalidates on NFS
        try:
            now = os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
        # Two changes within one tick of the file system's clock have the same mtime: a recent one may hide
        # another.
        changed = now != self._mtime_ns or abs(time.time_ns() - now) < MTIME_MARGIN_NS
        self._mtime_ns = now
        return changed

    def look(self) -> dict[str, RunFiles]:
        """List the folder: the files of every run, by run name."""
        files: dict[str, list[str]] = {}
        for entry in os.listdir(self.folder):
            if match := NAME.fullmatch(entry):
                files.setdefault(match[1], []).append(match[2])
        return {name: _summarize(kinds) for name, kinds in files.items()}

    # ------------------------------------------------------------ the daemon's side

    def put(self, name: str, what: str, content: bytes = b"") -> None:
        """Write a file of a run atomically."""
        path = self.path(name, what)
        temporary = f"{self.folder}/.{name}.{what}"
        with open(temporary, "wb") as file:
            file.write(content)
        os.rename(temporary, path)

    def issue(self, names: Iterable[str]) -> None:
        """Create the claim tokens of these runs."""
        for name in names:
            with open(self.path(name, "ticket"), "wb"):
                pass

    def withdraw(self, name: str) -> bool:
        """Take the claim token, so that the run can never begin. False: the job has claimed it."""
        try:
            os.rename(self.path(name, "ticket"), self.path(name, f"claim.{GFLOW}"))
        except FileNotFoundError:
            return os.path.exists(self.path(name, f"claim.{GFLOW}"))
        return True

    def read_exit(self, name: str) -> Exit | None:
        try:
            with open(self.path(name, "exit"), encoding="ascii", errors="replace") as file:
                words = file.read().split()
        except FileNotFoundError:
            return None
        code = int(words[0]) if words and words[0].isdecimal() else None
        return Exit(code, "told" in words)

    def clear(self, name: str) -> None:
        """Delete all files of a run. Without its claim token no copy of it can begin. A copy that still runs,
        on a node that was considered dead, kills itself when it finds its claim file gone."""
        for entry in os.listdir(self.folder):
            if entry.startswith((f"{name}.", f".{name}.")):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.folder}/{entry}")


def _summarize(kinds: list[str]) -> RunFiles:
    claims = [kind.removeprefix("claim.").split(".") for kind in kinds if kind.startswith("claim.")]
    taken = [Claim(int(parts[0]), parts[1]) for parts in claims if len(parts) == 2 and parts[0].isdecimal()]
    return RunFiles(
        "ticket" in kinds, "asked" in kinds, taken[0] if taken else None, [GFLOW] in claims, "exit" in kinds
    )
