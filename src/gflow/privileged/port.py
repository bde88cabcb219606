"""The port of what the daemon does with root's rights besides running jobs, which is `targets.port`.

A private daemon does the same with the rights of its user. The caller names users, processes and GPUs, never
a path that root opens; lease files are the exception, whose folder the port itself names.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from gflow.gpu.owners import ProcessOwners
from gflow.privileged.accounts import Account
from gflow.targets.file_rights import FileOpener, Owner
from gflow.targets.slurm.ssh.user_account import Program


def progress_socket(folder: str | Path, uid: int, *, is_system: bool) -> str:
    """The path of the socket to which jobs of this user send progress reports."""
    name = f"progress-{uid}.sock" if is_system else "progress.sock"
    return f"{folder}/{name}"


class ProcessFacts(NamedTuple):
    """What /proc shows of a process to all users, unless it is mounted with `hidepid`."""

    # Clock ticks between boot and its start.
    started: int
    # Its effective user, and its resource limits as text.
    uid: int
    limits: str


class Privileged(Protocol):
    """All methods but those of the returned objects are called from the daemon's loop and return at once."""

    def account(self, uid: int) -> Account | None:
        """The account of this uid now, and why it may not be used; None: there is none."""

    def files_of(self, owner: Owner) -> FileOpener:
        """Opens files with the rights of this user."""

    def process_owners(self, *, trust_pids: bool) -> ProcessOwners:
        """Tells which run or user a process belongs to."""

    def visible_devices(self, pid: int) -> tuple[str, ...]:
        """The entries of a process's CUDA_VISIBLE_DEVICES; none if the process has ended."""

    def hidden_process(self, pid: int) -> ProcessFacts | None:
        """A process that /proc does not show to us; None: it has ended, or /proc shows all."""

    def lease_folder(self) -> str:
        """The folder of the GPUs' lock files; empty: this machine has none."""

    def lease_holder(self, path: str) -> int | None:
        """The uid of the holder of this lock; None: not held. Locks that do not count are ignored."""

    def remove_leases(self, paths: Iterable[str]) -> None:
        """Remove the lock files of the system daemon that no job holds."""

    def bind_progress_socket(self, uid: int) -> socket.socket:
        """The socket to which jobs of this user send progress reports. OSError: there can be none."""

    def remove_progress_socket(self, uid: int) -> None:
        """Remove the name of that socket."""

    def make_ssh_folder(self, owner: Owner) -> Path:
        """A folder of this user for the sockets of connections to clusters."""

    def bind_port(self, host: str, port: int) -> list[socket.socket]:
        """A listening socket at this port for each address of the host. OSError: none."""

    def run_as(self, uid: int, name: str, program: str, words: Sequence[str]) -> Program:
        """Run ssh, or gflow's program for files, as a user, with three pipes. OSError, Refused: it cannot.

        May be called by any thread, and waits until the program has started.
        """
