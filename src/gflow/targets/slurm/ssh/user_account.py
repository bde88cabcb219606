"""A user of the machine as whom root's daemon runs commands for a cluster: with that user's keys.

Standard library only: the process that becomes the user imports this before anything else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gflow.targets.local.shim.privileges import become

ROOT = str(Path(__file__).resolve().parents[4])
BOOT = (
    f"import sys; sys.path.append({ROOT!r});"
    " from gflow.targets.slurm.ssh.user_account import run_as; run_as(sys.argv[1:])"
)


class UserAccount(NamedTuple):
    """An account, and the folder for the sockets of its connections, which belongs to it."""

    uid: int
    gid: int
    name: str
    home: str
    ssh_folder: Path

    @property
    def snapshots(self) -> Path:
        """The folder for the files of its jobs, as they were at the submission. Only the user opens it."""
        return Path(self.home) / ".local/share/gflow/system/snapshots"

    @property
    def prefix(self) -> list[str]:
        """Words that become this user and run the command that follows them."""
        return [sys.executable, "-I", "-S", "-c", BOOT, str(self.uid), self.name]

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its commands: that of a fresh login, without an agent."""
        path = os.environ.get("PATH", os.defpath)
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "PATH": path}


def run_as(words: Sequence[str]) -> None:
    """Become a user, and run a command instead of this process: `UID NAME COMMAND…`."""
    uid, name, *command = words
    try:
        become(int(uid), name)
        os.chdir("/")
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run as {name}: {error.strerror}")
