"""The port `Privileged` in the daemon's own process, which has the rights."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gflow.gpu.owners import Owners, ProcessOwners
from gflow.privileged import accounts
from gflow.privileged.accounts import Account
from gflow.privileged.port import ProcessFacts, progress_socket
from gflow.targets.file_rights import FileOpener, LocalOpener, Owner
from gflow.targets.local import gpu_leases
from gflow.targets.local.run_record import start_time
from gflow.targets.slurm.ssh import user_account


class InProcess:
    """Implements the port. `run_dir`: of the run records; `socket_dir`: of the daemon's socket."""

    def __init__(self, run_dir: Path, socket_dir: Path, *, is_system: bool) -> None:
        self._run_dir = str(run_dir)
        self._socket_dir = socket_dir
        self._is_system = is_system

    # ------------------------------------------------------------ users

    def account(self, uid: int) -> Account | None:
        return accounts.look_up(uid)

    def files_of(self, owner: Owner) -> FileOpener:
        return LocalOpener(owner)

    # ------------------------------------------------------------ processes

    def process_owners(self, *, trust_pids: bool) -> ProcessOwners:
        return Owners(self._run_dir, trust_pids=trust_pids)

    def visible_devices(self, pid: int) -> tuple[str, ...]:
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"CUDA_VISIBLE_DEVICES="):
                    return tuple(entry.decode(errors="replace").partition("=")[2].split(","))
        return ()

    def hidden_process(self, pid: int) -> ProcessFacts | None:
        """Return None: root sees all processes, and a private daemon needs only those of its user."""
        return None

    def process_facts(self, pid: int) -> ProcessFacts | None:
        """The same for a scheduler from which it is hidden."""
        started = start_time(pid)
        with suppress(OSError), open(f"/proc/{pid}/status") as status, open(f"/proc/{pid}/limits") as limits:
            uid = next(int(line.split()[2]) for line in status if line.startswith("Uid:"))
            text = limits.read()
            if started is not None and start_time(pid) == started:
                return ProcessFacts(started, uid, text)
        return None

    # ------------------------------------------------------------ leases

    def lease_folder(self) -> str:
        return gpu_leases.lease_folder()

    def lease_holder(self, path: str) -> int | None:
        return gpu_leases.holder_of(path, is_system=self._is_system)

    def remove_leases(self, paths: Iterable[str]) -> None:
        gpu_leases.remove_system_locks(paths)

    # ------------------------------------------------------------ sockets

    def bind_progress_socket(self, uid: int) -> socket.socket:
        path = Path(progress_socket(self._socket_dir, uid, is_system=self._is_system))
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
        try:
            # Through the descriptor of the folder, because sun_path is limited to 108 bytes.
            sock.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        path.chmod(0o600)
        if self._is_system:
            os.chown(path, uid, -1, follow_symlinks=False)
        return sock

    def remove_progress_socket(self, uid: int) -> None:
        path = progress_socket(self._socket_dir, uid, is_system=self._is_system)
        Path(path).unlink(missing_ok=True)

    def make_ssh_folder(self, owner: Owner) -> Path:
        top = self._socket_dir / "ssh"
        top.mkdir(mode=0o711, exist_ok=True)
        top.chmod(0o711)
        folder = top / str(owner.uid)  # only root can change what is in `top`
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)
        return folder

    def bind_port(self, host: str, port: int) -> list[socket.socket]:
        return listen_at(host, port)

    # ------------------------------------------------------------ programs of users

    def run_as(self, uid: int, name: str, program: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        account = accounts.look_up(uid)
        if account is None or account.name != name:
            raise PermissionError(errno.EPERM, f"uid {uid} is not that of {name}")
        return user_account.start(account, uid, program, words)


def listen_at(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of the host. OSError: one is taken."""
    found: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            found.append(socket.create_server(address, family=family))
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found
