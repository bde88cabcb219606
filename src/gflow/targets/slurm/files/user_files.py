"""Files of jobs for clusters in system mode: every step runs in a process of the user.

Root's daemon never opens a file of a project, a snapshot or a result: it starts a process that gives up root
for good, does one call and prints the answer as JSON. Answers are data of the user and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from gflow.errors import Refused
from gflow.targets.local.shim.privileges import become
from gflow.targets.slurm.files.local_snapshots import LocalSnapshots, SnapshotId, Taken, parse_id
from gflow.targets.slurm.files.result_fetch import Fetched, FetchOrder, ResultFetch
from gflow.targets.slurm.files.snapshot_transfer import Sent, SnapshotTransfer
from gflow.targets.slurm.ssh.pipe_exchange import exchange
from gflow.targets.slurm.ssh.ssh_runner import SshRunner
from gflow.targets.slurm.ssh.user_account import UserAccount

# Seconds for a snapshot, which a submission waits for, and for everything else.
TAKE_S, CALL_S = 300.0, 86_400.0


class FileCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One call: `take` and `tidy` are about the snapshots here, the others about a cluster."""

    what: Literal["take", "tidy", "send", "prune", "fetch"]
    # The folder of the snapshots here.
    snapshots: str
    # The connection to a cluster, and its folder of snapshots.
    host: str = ""
    name: str = ""
    ssh_folder: str = ""
    folder: str = ""
    links: bool = False
    root: str = ""
    limit_bytes: int = 0
    snapshot: str = ""
    used: list[str] = []
    keeps_index: list[str] | None = None
    order: FetchOrder | None = None


class FileAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer of a call, or why it was refused."""

    refused: str = ""
    hint: str = ""
    taken: Taken | None = None
    sent: Sent | None = None
    fetched: Fetched | None = None
    kept: list[str] = []


class UserSnapshots:
    """Snapshots here of one user, with methods of `LocalSnapshots`."""

    def __init__(self, user: UserAccount) -> None:
        self._user = user

    def take(self, root: str, limit_bytes: int) -> Taken:
        call = FileCall(what="take", snapshots=str(self._user.snapshots), root=root, limit_bytes=limit_bytes)
        answer = run_call(self._user, call, TAKE_S)
        if answer.taken is None:
            raise Refused(answer.refused or "no snapshot was taken", hint=answer.hint)
        parse_id(answer.taken.id)
        return answer.taken._replace(note=answer.taken.note[:1000])

    def prune(self, used: set[str], now: float, keeps_index: set[str] | None) -> None:
        call = FileCall(
            what="tidy",
            snapshots=str(self._user.snapshots),
            used=sorted(used),
            keeps_index=None if keeps_index is None else sorted(keeps_index),
        )
        _check(run_call(self._user, call))


class UserTransfer:
    """Transfers of one user's files between this machine and one cluster. One call at a time.

    It has the methods of `SnapshotTransfer` and `ResultFetch`.
    """

    def __init__(self, ssh: SshRunner, folder: str = "", *, links: bool = False) -> None:
        assert ssh.user is not None
        self._user, self._ssh, self._folder, self._links = ssh.user, ssh, folder, links
        self._lock = threading.Lock()

    def send(self, snapshot: SnapshotId) -> Sent:
        id = f"{snapshot.project}/{snapshot.tree}.{snapshot.token}"
        with self._lock:
            answer = self._run(FileCall(what="send", snapshots="", snapshot=id))
        return answer.sent or Sent(False, answer.refused)

    def progress(self) -> str:
        """Not known: the transfer runs in a process of the user."""
        return ""

    def prune(self, used: set[str]) -> set[str]:
        with self._lock:
            answer = self._run(FileCall(what="prune", snapshots="", used=sorted(used)))
        _check(answer)
        return {id for id in answer.kept if parse_id(id)}

    def fetch(self, order: FetchOrder) -> Fetched:
        answer = self._run(FileCall(what="fetch", snapshots="", order=order))
        return answer.fetched or Fetched(False, error=answer.refused)

    def _run(self, call: FileCall) -> FileAnswer:
        call.snapshots, call.host, call.name = str(self._user.snapshots), self._ssh.host, self._ssh.name
        call.ssh_folder, call.folder = str(self._ssh.control_path.parent), self._folder
        call.links = self._links
        return run_call(self._user, call)


def _check(answer: FileAnswer) -> None:
    if answer.refused:
        raise OSError(answer.refused)


def run_call(user: UserAccount, call: FileCall, timeout_s: float = CALL_S) -> FileAnswer:
    """Run a call in a process of the user."""
    try:
        process = user.start("files")
    except (OSError, Refused) as error:
        return FileAnswer(refused=f"no process for {user.name}: {getattr(error, 'strerror', None) or error}")
    output, errors, problem = exchange(process, msgspec.json.encode(call), timeout_s)
    try:
        return msgspec.json.decode(output, type=FileAnswer)
    except msgspec.MsgspecError:
        lines = errors.decode(errors="replace").strip().splitlines()
        said = f"the process for the files of {user.name} {problem}" if problem else ""
        return FileAnswer(refused=said or (lines[-1][:300] if lines else "it ended without an answer"))


# ---------------------------------------------------------------- the process of the user


def main(uid: str, name: str) -> None:
    """Become the user, then do the call that the standard input describes."""
    try:
        become(int(uid), name)
        answer = perform(msgspec.json.decode(sys.stdin.buffer.read(), type=FileCall))
    except Refused as error:
        answer = FileAnswer(refused=error.message, hint=error.hint or "")
    except (OSError, ValueError) as error:
        answer = FileAnswer(refused=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def perform(call: FileCall) -> FileAnswer:
    """Do a call, with the rights that this process has."""
    snapshots = LocalSnapshots(Path(call.snapshots))
    if call.what in ("take", "tidy"):
        with _lock(Path(call.snapshots)):
            if call.what == "take":
                return FileAnswer(taken=snapshots.take(call.root, call.limit_bytes))
            keeps = None if call.keeps_index is None else set(call.keeps_index)
            snapshots.prune(set(call.used), time.time(), keeps)
            return FileAnswer()
    ssh = SshRunner(call.host, Path(call.ssh_folder), name=call.name)
    if call.what == "fetch":
        assert call.order is not None
        return FileAnswer(fetched=ResultFetch(ssh, snapshots).fetch(call.order))
    transfer = SnapshotTransfer(ssh, call.folder, snapshots, links=call.links)
    if call.what == "send":
        return FileAnswer(sent=transfer.send(parse_id(call.snapshot)))
    return FileAnswer(kept=sorted(transfer.prune(set(call.used))))


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Exclude other processes that change the snapshots of this user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
