"""The port `Privileged` in a scheduler without rights: calls of the launcher."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType

from gflow.gpu.owners import Owner as ProcessOwner
from gflow.gpu.owners import ProcessOwners
from gflow.privileged import messages
from gflow.privileged.accounts import Account
from gflow.privileged.in_process import listen_at
from gflow.privileged.link import Link
from gflow.privileged.port import ProcessFacts
from gflow.privileged.user_program import RemoteProgram
from gflow.targets.file_rights import FileOpener, Owner
from gflow.targets.local.run_record import start_time
from gflow.targets.slurm.ssh.user_account import Program

# Below it only root listens.
FIRST_PORT = 1024


class Remote:
    """Implements the port."""

    def __init__(self, link: Link) -> None:
        self._link = link
        # Whether /proc is mounted with `hidepid`: then it shows only our own processes.
        self._is_proc_hidden = not os.access("/proc/1/stat", os.R_OK)

    # ------------------------------------------------------------ users

    def account(self, uid: int) -> Account | None:
        if not 0 <= uid < (1 << 32) - 1:
            return None
        return self._link.call(messages.AccountOf(uid=uid), Account | None)  # type: ignore[arg-type]

    def files_of(self, owner: Owner) -> FileOpener:
        return RemoteFiles(self._link, owner)

    def run_as(self, uid: int, name: str, program: str, words: Sequence[str]) -> Program:
        return RemoteProgram(self._link, uid, name, program, words)

    # ------------------------------------------------------------ processes

    def process_owners(self, *, trust_pids: bool) -> ProcessOwners:
        return RemoteOwners(self._link, trust_pids, self.hidden_process)

    def hidden_process(self, pid: int) -> ProcessFacts | None:
        if not self._is_proc_hidden:
            return None
        return self._link.call(messages.ProcessOf(pid=pid), ProcessFacts | None)  # type: ignore[arg-type]

    def visible_devices(self, pid: int) -> tuple[str, ...]:
        return tuple(self._link.call(messages.VisibleDevices(pid=pid), list[str]))

    # ------------------------------------------------------------ leases

    def lease_folder(self) -> str:
        return self._link.greeting.lease_folder

    def lease_holder(self, path: str) -> int | None:
        message = messages.LeaseHolder(gpu=os.path.basename(path))
        return self._link.call(message, int | None)  # type: ignore[arg-type]

    def remove_leases(self, paths: Iterable[str]) -> None:
        self._link.call(messages.RemoveLeases(gpus=tuple(map(os.path.basename, paths))), NoneType)

    # ------------------------------------------------------------ sockets

    def bind_progress_socket(self, uid: int) -> socket.socket:
        (fd,) = self._link.call_for_files(messages.BindProgress(uid=uid))
        return socket.socket(fileno=fd)

    def remove_progress_socket(self, uid: int) -> None:
        self._link.call(messages.RemoveProgress(uid=uid), NoneType)

    def make_ssh_folder(self, owner: Owner) -> Path:
        return Path(self._link.call(messages.SshFolder(uid=owner.uid), str))

    def bind_port(self, host: str, port: int) -> list[socket.socket]:
        if port >= FIRST_PORT:
            return listen_at(host, port)
        descriptors = self._link.call_for_files(messages.BindPort(host=host, port=port))
        return [socket.socket(fileno=fd) for fd in descriptors]


class RemoteFiles:
    """Opens files of a user through the launcher."""

    def __init__(self, link: Link, owner: Owner) -> None:
        self._link, self._owner = link, owner

    def open_log(self, path: str) -> int:
        return self._open("log", path)

    def open_file(self, path: str) -> int:
        return self._open("file", path)

    def open_folder(self, path: str) -> int:
        return self._open("folder", path)

    def open_copy(self, path: str, *, writes: bool) -> int:
        return self._open("copy to write" if writes else "copy", path)

    def _open(self, what: str, path: str) -> int:
        message = messages.OpenFile(uid=self._owner.uid, what=what, path=path)  # type: ignore[arg-type]
        (fd,) = self._link.call_for_files(message)
        return fd


class RemoteOwners:
    """Owners of GPU processes according to the launcher, cached while a process stays on its GPU."""

    def __init__(
        self, link: Link, trust_pids: bool, hidden_process: Callable[[int], ProcessFacts | None]
    ) -> None:
        self._link, self._trust_pids = link, trust_pids
        self._hidden_process = hidden_process
        self._known: dict[int, ProcessOwner] = {}

    def keep(self, pids: Iterable[int]) -> None:
        self._known = {pid: self._known[pid] for pid in pids if pid in self._known}

    def of(self, pid: int) -> ProcessOwner:
        owner = self._known.get(pid)
        if owner is None:
            message = messages.OwnerOf(pid=pid, trusts_pids=self._trust_pids)
            owner = self._link.call(message, ProcessOwner)
            if owner.is_known:
                self._known[pid] = owner
        return owner

    def started(self, pid: int) -> int | None:
        with suppress(PermissionError):  # hidepid=1; with 2 it is as if there were no such process
            if (started := start_time(pid)) is not None:
                return started
        found = self._hidden_process(pid)
        return found.started if found else None

    def shim_of(self, run: str) -> int | None:
        return self._link.call(messages.ShimOf(run=run), int | None)  # type: ignore[arg-type]

    def runs_containers(self, job_pid: int) -> bool:
        return self._link.call(messages.RunsContainers(pid=job_pid), bool)
