"""Files through which gflow and its jobs on the nodes tell each other things, in a folder that both see.

All of a run begin with its name, `42.1` or `42_3.1`:

    .ticket       Whoever takes it may run: the job on the node, or gflow, which thereby takes the run back.
                  Taken by renaming it to `.claim.BID.SLURMID`: one alone can do that, also over NFS.
    .exit         The job's exit code, and whether it was told to stop; written by the job itself.
    .asked        sbatch was called: before it is called again, somebody must look whether it worked.
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

# Who takes a ticket so that nobody else runs.
GFLOW = "gflow"
SETTLED_NS = 3_000_000_000
NAME = re.compile(r"(\d+(?:_\d+)?\.\d+)\.(.+)")


class Claim(NamedTuple):
    """Who took a ticket: the number of the bid, and the Slurm job."""

    bid: int
    id: str


class Exit(NamedTuple):
    """What a job wrote about its own end. `told`: it had been sent a signal."""

    code: int | None
    told: bool


class Found(NamedTuple):
    """What the folder has of one run."""

    ticket: bool
    asked: bool
    claim: Claim | None
    withdrawn: bool
    exit: bool


class SharedFolder:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._seen = 0

    def daemon_id(self) -> str:
        """What tells our jobs from those of another gflow: made once, kept."""
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
        """Whether anything was made or renamed here since this was last asked."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # NFS looks anew when it opens
        try:
            now = os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)
        # Two changes within one tick of the file system's clock look like one: soon after, look again.
        changed = now != self._seen or abs(time.time_ns() - now) < SETTLED_NS
        self._seen = now
        return changed

    def look(self) -> dict[str, Found]:
        """Everything, by run."""
        files: dict[str, list[str]] = {}
        for entry in os.listdir(self.folder):
            if match := NAME.fullmatch(entry):
                files.setdefault(match[1], []).append(match[2])
        return {name: _found(kinds) for name, kinds in files.items()}

    # ------------------------------------------------------------ our side

    def put(self, name: str, what: str, content: bytes = b"") -> None:
        """A file, whole or not at all."""
        path = self.path(name, what)
        temporary = f"{self.folder}/.{name}.{what}"
        with open(temporary, "wb") as file:
            file.write(content)
        os.rename(temporary, path)

    def issue(self, names: Iterable[str]) -> None:
        """Tickets for runs that have none yet."""
        for name in names:
            with open(self.path(name, "ticket"), "wb"):
                pass

    def withdraw(self, name: str) -> bool:
        """Take the ticket, so that the run can never begin. False: somebody else has."""
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
        """Nothing of this run is needed any more. Without its ticket nothing of it can ever begin, and what
        lives of it, on a node that was thought dead, ends when it finds its claim gone."""
        for entry in os.listdir(self.folder):
            if entry.startswith((f"{name}.", f".{name}.")):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.folder}/{entry}")


def _found(kinds: list[str]) -> Found:
    claims = [kind.removeprefix("claim.").split(".") for kind in kinds if kind.startswith("claim.")]
    taken = [Claim(int(parts[0]), parts[1]) for parts in claims if len(parts) == 2 and parts[0].isdecimal()]
    return Found(
        "ticket" in kinds, "asked" in kinds, taken[0] if taken else None, [GFLOW] in claims, "exit" in kinds
    )
