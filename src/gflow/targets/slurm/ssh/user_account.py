"""A user of the machine as whom commands for a cluster run: with that user's keys, in a process of the user.

Standard library only: the process that becomes the user imports this before anything else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from gflow.targets.local.shim.privileges import become

ROOT = str(Path(__file__).resolve().parents[4])
BOOT = (
    f"import sys; sys.path.append({ROOT!r});"
    " from gflow.targets.slurm.ssh.user_account import run_as; run_as(sys.argv[1:])"
)
FILES_BOOT = (
    f"import sys; sys.path.append({ROOT!r});"
    " from gflow.targets.slurm.files.user_files import main; main(*sys.argv[1:])"
)


class Program(Protocol):
    """A running program with three pipes, as `subprocess.Popen` has them."""

    @property
    def args(self) -> Any: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    @property
    def stderr(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Entry(Protocol):
    """What is needed of an entry of the user database."""

    @property
    def name(self) -> str: ...
    @property
    def home(self) -> str: ...


class UserAccount(NamedTuple):
    """An account, and the folder for the sockets of its connections, which belongs to it."""

    uid: int
    gid: int
    name: str
    home: str
    ssh_folder: Path
    # Starts a program as a user: uid, name, program and words. OSError, Refused: it cannot.
    run_as: Callable[[int, str, str, Sequence[str]], Program]

    @property
    def snapshots(self) -> Path:
        """The folder for the files of its jobs, as they were at the submission. Only the user opens it."""
        return Path(self.home) / ".local/share/gflow/system/snapshots"

    def start(self, program: str, words: Sequence[str] = ()) -> Program:
        """Start a program as this user."""
        return self.run_as(self.uid, self.name, program, words)


def start(
    account: Entry, uid: int, program: str, words: Sequence[str], pipes: Sequence[int] = (-1, -1, -1)
) -> subprocess.Popen[bytes]:
    """Start ssh, or the program for files, as a user: in a process that gives up root for good.

    `pipes`: its three descriptors; -1: a new pipe. Its environment is that of a fresh login.
    """
    python = {"ssh": ["-I", "-S", "-c", BOOT], "files": ["-I", "-c", FILES_BOOT]}[program]
    command = ["ssh"] if program == "ssh" else []
    path = os.environ.get("PATH", os.defpath)
    return subprocess.Popen(
        [sys.executable, *python, str(uid), account.name, *command, *words],
        stdin=pipes[0],
        stdout=pipes[1],
        stderr=pipes[2],
        env={"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "PATH": path},
        cwd="/",
        umask=0o077,
        start_new_session=True,
    )


def run_as(words: Sequence[str]) -> None:
    """Become a user, and run a command instead of this process: `UID NAME COMMAND…`."""
    uid, name, *command = words
    try:
        become(int(uid), name)
        os.chdir("/")
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run as {name}: {error.strerror}")
