"""The shared folder: files that the daemon and the jobs on the nodes exchange.

All files of a run begin with its name, `42.1` or `42_3.1`:

    .ticket       The claim token. The job on the node renames it to `.claim.CANDIDATE.SLURMID` and may then
                  run; gflow renames it to withdraw the run. A rename succeeds for one side only, also on NFS.
    .exit         The job's exit code, and whether it was signalled; written by the job itself.
    .asked        sbatch was called. Before another call the queue must be checked for the first one. A
                  line `CANDIDATE SLURMID` for each answer; for each part of an array that sbatch was called
                  for `CANDIDATE SLURMID OFFSET TASKS`, with `-` as the id until the answer.
    .stop         The job is asked to stop (GFLOW_STOP_FILE).
    .script       The user's script as it was submitted.
    .progress     Progress reports of the job (`progress_files`).
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# The claimant in the file name of a token that gflow took to withdraw the run.
GFLOW = "gflow"
# Exit codes above this one are those of commands that a signal ended.
SIGNALS = 128
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

    @property
    def is_end(self) -> bool:
        """Whether the job ended by itself, so that the state that Slurm gives it does not matter.

        A signal of Slurm may end the command before the batch shell has noticed its own (code 143, not
        `was_signalled`): whether that was the time limit is for Slurm to say.
        """
        return self.code is not None and self.code <= SIGNALS and not self.was_signalled


class RunFiles(NamedTuple):
    """The files of one run. `was_submitted`: sbatch was called; `exit`: an exit record exists."""

    has_token: bool
    was_submitted: bool
    claim: Claim | None
    withdrawn: bool
    exit: bool

    @property
    def is_empty(self) -> bool:
        """Whether the run has neither a token nor any sign that it began or was withdrawn."""
        return not (self.has_token or self.claim or self.withdrawn or self.exit)


class AskedPart(NamedTuple):
    """A part of an array that sbatch was called for: its candidate, its offset, and its tasks: `0-9,12`."""

    candidate: int
    offset: int
    tasks: str


class RunFile(NamedTuple):
    """A file that the daemon writes for a run."""

    name: str
    what: str
    content: bytes


class SharedFolder:
    """One shared folder, as the daemon uses it. `remote_folder` has the same methods."""

    is_remote = False

    def __init__(self, folder: Path, *, makes_parents: bool = True) -> None:
        self.folder = folder
        self._makes_parents = makes_parents
        self._mtime_ns = 0

    def daemon_id(self) -> str:
        """The identity of this daemon in job tags. Created once, with the folder, and kept in it."""
        self.folder.mkdir(mode=0o700, parents=self._makes_parents, exist_ok=True)
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
        """List the folder: the files of every run, by run name. OSError: it is not the folder of gflow."""
        files: dict[str, list[str]] = {}
        entries = os.listdir(self.folder)
        if "id" not in entries:
            raise FileNotFoundError(errno.ENOENT, "the files of gflow are not there")
        for entry in entries:
            if match := NAME.fullmatch(entry):
                files.setdefault(match[1], []).append(match[2])
        return {name: summarize(kinds) for name, kinds in files.items()}

    def look_after_poll(self) -> dict[str, RunFiles]:
        return self.look()

    def expand(self, path: str) -> str:
        """A path as jobs see it."""
        return path

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

    def write(self, tokens: Iterable[str], files: Iterable[RunFile]) -> None:
        """Create the claim tokens of runs, and write files of runs."""
        self.issue(tokens)
        for file in files:
            self.put(*file)

    def note_asked(self, name: str, content: bytes) -> str:
        """Write the file `.asked`. Returns shell lines that have to run before sbatch: none."""
        self.put(name, "asked", content)
        return ""

    def note_answers(self, name: str, content: bytes) -> None:
        """Write the answers of sbatch to the file `.asked`."""
        with suppress(OSError):  # the database has the ids too
            self.put(name, "asked", content)

    def withdraw(self, name: str) -> bool:
        """Take the claim token, so that the run can never begin. False: the job has claimed it."""
        try:
            os.rename(self.path(name, "ticket"), self.path(name, f"claim.{GFLOW}"))
        except FileNotFoundError:
            found = self.look().get(name)
            if found is not None and (found.claim or found.exit):
                return False
            if found is None or not found.withdrawn:
                self.put(name, f"claim.{GFLOW}")  # its token is gone: no job can claim it any more
        return True

    def withdraw_all(self, names: Sequence[str]) -> dict[str, bool]:
        """Take the claim tokens of these runs: whether each can never begin."""
        return {name: self.withdraw(name) for name in names}

    def has_token(self, name: str) -> bool:
        return os.path.exists(self.path(name, "ticket"))

    def claim_of(self, name: str) -> Claim | None:
        found = self.look().get(name)
        return found.claim if found is not None else None

    def read_exit(self, name: str) -> Exit | None:
        try:
            with open(self.path(name, "exit"), encoding="ascii", errors="replace") as file:
                words = file.read().split()
        except FileNotFoundError:
            return None
        return parse_exit(" ".join(words))

    def read_asked(self, name: str) -> dict[int, str]:
        """The Slurm job ids that sbatch answered, by candidate."""
        return parse_asked(self._asked_lines(name))

    def read_parts(self, name: str) -> list[AskedPart]:
        """The parts of an array that sbatch was called for."""
        return parse_parts(self._asked_lines(name))

    def _asked_lines(self, name: str) -> list[str]:
        with open(self.path(name, "asked"), encoding="ascii", errors="replace") as file:
            return file.readlines()

    def clear(self, names: Collection[str]) -> None:
        """Delete all files of these runs. Without its claim token no copy of a run can begin. A copy that
        still runs, on a node that was considered dead, kills itself when it finds its claim file gone."""
        for entry in os.listdir(self.folder):
            match = NAME.fullmatch(entry.removeprefix("."))
            if match and match[1] in names:
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.folder}/{entry}")


def parse_exit(text: str) -> Exit:
    """Parse an exit record: `3` or `143 told`."""
    words = text.split()
    return Exit(int(words[0]) if words and words[0].isdecimal() else None, "told" in words)


def parse_asked(lines: Iterable[str]) -> dict[int, str]:
    """Parse the ids of lines `CANDIDATE SLURMID [OFFSET TASKS]`."""
    found = [line.split() for line in lines]
    known = [line for line in found if len(line) in (2, 4) and line[0].isdecimal() and line[1] != "-"]
    return {int(line[0]): line[1] for line in known}


def parse_parts(lines: Iterable[str]) -> list[AskedPart]:
    """Parse the tasks of lines `CANDIDATE SLURMID OFFSET TASKS`."""
    found = [line.split() for line in lines]
    parts = [line for line in found if len(line) == 4 and (line[0] + line[2]).isdecimal()]
    return [AskedPart(int(line[0]), int(line[2]), line[3]) for line in parts]


def summarize(kinds: list[str]) -> RunFiles:
    claims = [kind.removeprefix("claim.").split(".") for kind in kinds if kind.startswith("claim.")]
    taken = [Claim(int(parts[0]), parts[1]) for parts in claims if len(parts) == 2 and parts[0].isdecimal()]
    return RunFiles(
        "ticket" in kinds, "asked" in kinds, taken[0] if taken else None, [GFLOW] in claims, "exit" in kinds
    )
