"""Owners of GPU processes: a run of ours, another user's process, or unknown.

Ours: it, or a process above it, carries a run's tag in its environment or is a run's shim. (What a job
detaches stays below the shim, which is its subreaper.) Any process can set a tag: it is trusted only for
processes of the daemon's own user. As root, the daemon identifies processes of other users by their shims,
which cannot be forged.

NVML reports host pids. In another pid namespace these are different processes, or none: there a pid is
trusted only if that process has the NVIDIA device open.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

TAG = b"GFLOW_RUN="
# The inode of the first pid namespace, which is a constant of the kernel.
FIRST_NAMESPACE = 0xEFFFFFFC
CONTAINER = re.compile(rb"docker|containerd|libpod|podman|kubepods|crio|lxc|buildkit")
CLIENTS = {b"docker", b"podman", b"nerdctl", b"docker-compose", b"ctr", b"enroot"}
FAR_UP = 64
MPS_SERVER = "nvidia-cuda-mps-server"


class Owner(NamedTuple):
    """`run`: the name of a run of ours; otherwise `user`. Without `run` and `command` it is unknown."""

    run: str = ""
    user: str = ""
    command: str = ""
    contained: bool = False
    started: int = 0
    # Whether it is an MPS server of root's or of our own user's.
    is_mps: bool = False

    @property
    def is_known(self) -> bool:
        return bool(self.run or self.command)


class ProcessOwners(Protocol):
    """Tells whom processes belong to."""

    def keep(self, pids: Iterable[int]) -> None:
        """Forget all but these: a pid that left its GPU may come back as another process."""

    def of(self, pid: int) -> Owner:
        """The owner of a process."""

    def started(self, pid: int) -> int | None:
        """The start time of a process; None: it has ended."""

    def shim_of(self, run: str) -> int | None:
        """The pid of the shim of this run, as the run records have it."""

    def runs_containers(self, job_pid: int) -> bool:
        """Whether this process has a descendant that is a client of a container engine."""


class Owners:
    """Owners according to /proc, cached while a process stays on its GPU."""

    def __init__(self, run_dir: str, *, trust_pids: bool = False, proc: str = "/proc") -> None:
        self._run_dir = run_dir
        self._proc = proc
        self._tag = TAG + os.fsencode(run_dir) + b"/"
        self._known: dict[int, Owner] = {}
        self._shims: dict[int, str] = {}
        self._doubtful = not trust_pids and _namespace(proc) != FIRST_NAMESPACE

    def keep(self, pids: Iterable[int]) -> None:
        self._known = {pid: self._known[pid] for pid in pids if pid in self._known}

    def of(self, pid: int) -> Owner:
        owner = self._known.get(pid)
        if owner is None:
            owner = self._find(pid)
            if owner.is_known:
                self._known[pid] = owner
        return owner

    def _find(self, pid: int) -> Owner:
        stat = self._stat(pid)
        if stat is None or (self._doubtful and not self._has_gpu_open(pid)):
            return Owner()
        run = self._run_of(pid)
        if run:
            return Owner(run=run, command=self._command(pid))
        cgroup = self._read(pid, "cgroup") or b""
        return Owner(
            user=self._user(pid),
            command=self._command(pid),
            contained=bool(CONTAINER.search(cgroup)),
            started=stat[1],
            is_mps=self._is_mps(pid),
        )

    # ------------------------------------------------------------ ours?

    def _run_of(self, pid: int) -> str:
        """The run whose tag this process or one above it carries."""
        self._shims = {}
        for _ in range(FAR_UP):
            environ = (self._read(pid, "environ") or b"") if self._is_ours(pid) else b""
            at = environ.find(self._tag)
            if at == 0 or (at > 0 and environ[at - 1] == 0):
                return os.fsdecode(environ[at + len(self._tag) :].split(b"\0", 1)[0])
            of_shim = b"GFLOW_RUN_DIR=" + os.fsencode(self._run_dir) + b"\0" in environ + b"\0"
            if of_shim and (run := self._run_of_shim(pid)):
                return run
            stat = self._stat(pid)
            if stat is None or stat[0] <= 1:
                return ""
            pid = stat[0]
        return ""

    def _run_of_shim(self, pid: int) -> str:
        """The run of this shim, from the run records; a zygote has none."""
        if not self._shims:
            self._shims = _shims_of(self._run_dir)
        return self._shims.get(pid, "")

    # ------------------------------------------------------------ an MPS server?

    def _is_mps(self, pid: int) -> bool:
        """Whether this is an MPS server, by its executable: a process can choose its name freely. Trusted
        only for root and for the daemon's own user, who may allow memory of other users on a GPU.
        """
        uids = set(self._uids(pid))
        if uids != {0} and uids != {os.geteuid()}:
            return False
        try:
            program = os.readlink(f"{self._proc}/{pid}/exe").removesuffix(" (deleted)")
        except PermissionError:  # it is root's and the daemon is not root: trust its command line
            program = os.fsdecode((self._read(pid, "cmdline") or b"").split(b"\0")[0])
        except OSError:
            return False
        return os.path.basename(program) == MPS_SERVER

    # ------------------------------------------------------------ /proc

    def _read(self, pid: int, name: str) -> bytes | None:
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb") as file:
                return file.read()
        except OSError:
            return None

    def _stat(self, pid: int) -> tuple[int, int] | None:
        """Parent and start time."""
        text = self._read(pid, "stat")
        if not text:
            return None
        fields = text[text.rindex(b")") + 2 :].split()
        return int(fields[1]), int(fields[19])

    def _has_gpu_open(self, pid: int) -> bool:
        return b"/dev/nvidia" in (self._read(pid, "maps") or b"")

    def _is_ours(self, pid: int) -> bool:
        """Whether all uids of a process are the daemon's own: it is not set-uid."""
        return set(self._uids(pid)) == {os.geteuid()}

    def _uids(self, pid: int) -> list[int]:
        """Real, effective and saved uid. Not the owner of the /proc directory, which a process can change."""
        for line in (self._read(pid, "status") or b"").splitlines():
            if line.startswith(b"Uid:"):
                return list(map(int, line.split()[1:4]))
        return []

    def _user(self, pid: int) -> str:
        uids = self._uids(pid)
        if not uids:
            return "?"
        try:
            return pwd.getpwuid(uids[0]).pw_name
        except KeyError:
            return str(uids[0])

    def _command(self, pid: int) -> str:
        words = (self._read(pid, "cmdline") or b"").split(b"\0")
        text = b" ".join(words).strip() or (self._read(pid, "comm") or b"?").strip()
        return "".join(mark if mark.isprintable() else "?" for mark in text.decode(errors="replace"))[:80]

    def shim_of(self, run: str) -> int | None:
        return next((pid for pid, name in _shims_of(self._run_dir).items() if name == run), None)

    def runs_containers(self, job_pid: int) -> bool:
        line = [job_pid]
        while line:
            pid = line.pop()
            if (self._read(pid, "comm") or b"").strip() in CLIENTS:
                return True
            with suppress(OSError):
                for thread in os.listdir(f"{self._proc}/{pid}/task"):
                    line += map(int, (self._read(pid, f"task/{thread}/children") or b"").split())
        return False

    def started(self, pid: int) -> int | None:
        stat = self._stat(pid)
        return stat[1] if stat else None


def _shims_of(run_dir: str) -> dict[int, str]:
    """Pid of every shim -> its run, as the run records have it."""
    shims = {}
    with suppress(OSError):
        for name in os.listdir(run_dir):
            if not name.endswith((".script", ".stop")):
                with suppress(OSError, ValueError, IndexError), open(f"{run_dir}/{name}") as file:
                    words = file.readline().split()
                    if words[0] == "shim":
                        shims[int(words[3])] = name
    return shims


def _namespace(proc: str) -> int:
    try:
        return os.stat(f"{proc}/self/ns/pid").st_ino
    except OSError:
        return 0
