"""GPU leases: one lock per GPU, in a folder that all users of the machine share.

Daemons of different users do not know each other. The shim of every job holds the locks of its GPUs while the
job runs, so no GPU is allocated twice. A lock is an flock on a file named after the GPU's UUID: it ends with
its holder, and taking it needs no write permission on another user's file.

Between daemons of ordinary users the locks are advisory: any user may hold one, as any user may use the GPU.
The system daemon owns its GPUs. Its lock files are root's alone, so no other user can hold them, its jobs do
not inherit them, and it ignores the locks of other users: it checks the processes on a GPU instead.

Standard library only: the shim imports this.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import time
from collections.abc import Iterable
from contextlib import suppress

# The end of an attempt whose GPUs another user's daemon had allocated first.
LEASED = "Leased"
# All users may write to the folder: follow no link, and block on no pipe.
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Seconds to wait for the gate lock of a shared GPU.
GATE_S = 1.0
FOLDERS = ("/run/lock/gflow", "/tmp/gflow-leases")


def lease_folder(folders: tuple[str, ...] = FOLDERS) -> str:
    """The lease folder: the first that exists or can be created. Empty: this machine has none."""
    chosen = os.environ.get("GFLOW_LEASE_DIR")
    for folder in (chosen,) if chosen else folders:
        with suppress(OSError):
            with suppress(FileExistsError):
                os.mkdir(folder)
                os.chmod(folder, 0o1777)
            if os.geteuid() == 0:
                _take_ownership(folder)
            found = os.lstat(folder)
            if stat.S_ISDIR(found.st_mode) and (found.st_mode & stat.S_ISVTX or found.st_uid == os.getuid()):
                return folder
    return ""


def _take_ownership(folder: str) -> None:
    """As root, take ownership of a folder that a user made: its owner could delete the locks of others."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid:
            os.fchown(fd, 0, 0)
            os.fchmod(fd, 0o1777)
    finally:
        os.close(fd)


def take(paths: Iterable[str], sharing: str = "", *, is_system: bool = False) -> list[int] | None:
    """Take the leases of all these GPUs; None if one of them is held.

    The job inherits the descriptors: if its shim is killed, the leases last until the job's process ends.
    `is_system`: for the system daemon. Its jobs cannot kill their shims, and could pass a lease on, so they
    do not inherit it. `sharing`: the name of the daemon, for a job that shares its GPUs. Jobs share only with
    jobs of the same daemon, as no other daemon knows how much GPU memory is left.
    """
    held: list[int] = []
    for path in paths:
        got = _share(path, sharing, is_system) if sharing else _lock(path, fcntl.LOCK_EX, is_system)
        if got is None:
            release(held)
            return None
        held += got
    for fd in held:
        os.set_inheritable(fd, not is_system)
    return held


def _lock(path: str, kind: int, is_system: bool = False) -> list[int] | None:
    try:
        fd = _open(path, is_system)
    except PermissionError:
        if _is_system_lock(path):
            return None
        raise
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return [fd]


def _share(path: str, sharing: str, is_system: bool) -> list[int] | None:
    """Take a shared lock on the GPU, which excludes exclusive jobs, and one on our daemon's own file for it,
    which excludes shared jobs of other daemons. The gate lock makes check and lock atomic."""
    if not is_system and _is_system_lock(path):
        return None
    gate = _open(path + ".gate", is_system)
    try:
        if not _acquire_gate(gate):
            return None
        folder, name = os.path.split(path)
        for other in os.listdir(folder):
            if other.startswith(name + ".shared-") and other != f"{name}.shared-{sharing}":
                if is_system and not _is_system_lock(f"{folder}/{other}"):
                    continue
                free = _lock(f"{folder}/{other}", fcntl.LOCK_EX)
                if free is None:
                    return None
                release(free)
        first = _lock(path, fcntl.LOCK_SH, is_system)
        second = _lock(f"{path}.shared-{sharing}", fcntl.LOCK_SH, is_system) if first else None
        if first is None or second is None:
            release(first or [])
            return None
        return first + second
    finally:
        os.close(gate)


def _acquire_gate(gate: int) -> bool:
    """Take the gate lock within GATE_S; whether that worked. A well-behaved process holds it very briefly."""
    until = time.monotonic() + GATE_S
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.001)
    return False


def release(held: list[int]) -> None:
    for fd in held:
        os.close(fd)


def holder_of(path: str, *, is_system: bool = False) -> int | None:
    """The uid of the holder of this lock; None: not held. `is_system`: ignore locks of other users."""
    if is_system and not _is_system_lock(path):
        return None
    try:
        fd = os.open(path, OPEN)
    except PermissionError:
        return 0 if _is_system_lock(path) else None
    except OSError:
        return None
    try:
        # Exclusive, so that it conflicts with shared locks too. A shim that fails on it retries.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner_of_lock(os.fstat(fd).st_ino)
    finally:
        os.close(fd)
    return None


def remove_system_locks(paths: Iterable[str]) -> None:
    """Remove the lock files of the system daemon that no job holds. Called when it stops."""
    for path in paths:
        with suppress(OSError):
            if _is_system_lock(path) and (held := _lock(path, fcntl.LOCK_EX, is_system=True)):
                os.unlink(path)
                release(held)


def _is_system_lock(path: str) -> bool:
    """Whether this is a lock file of the system daemon: owned by root, no access for others."""
    with suppress(OSError):
        found = os.lstat(path)
        return stat.S_ISREG(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o077
    return False


def _open_system_lock(path: str) -> int:
    """Open the lock file of the system daemon. A file that another user made or may hold is replaced."""
    while True:
        if not _is_system_lock(path):
            with suppress(FileNotFoundError):
                _remove(path)
            with suppress(FileExistsError):
                return os.open(path, OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(FileNotFoundError):
            return os.open(path, OPEN)


def _remove(path: str) -> None:
    """Remove a file; a folder, which may not be empty, is renamed instead."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        os.rename(path, f"{path}.removed-{os.getpid()}-{time.monotonic_ns()}")


def _open(path: str, is_system: bool = False) -> int:
    """Open or create a lock file that every user may open; that of the system daemon, only root.

    O_CREAT alone does not work: in a world-writable folder the kernel refuses it for files of other users
    (fs.protected_regular). The mode must be right from the start, for every umask.
    """
    if is_system:
        return _open_system_lock(path)
    if os.geteuid() == 0:
        _remove_non_file(path)
    fd = _open_or_make(path)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


def _open_or_make(path: str) -> int:
    with suppress(FileNotFoundError):
        return os.open(path, OPEN)
    umask = os.umask(0)
    try:
        return os.open(path, OPEN | os.O_CREAT | os.O_EXCL, 0o444)
    except FileExistsError:
        return os.open(path, OPEN)
    finally:
        os.umask(umask)


def _remove_non_file(path: str) -> None:
    """As root, remove an entry that is not a regular file and so cannot be a lock."""
    with suppress(OSError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)


def _owner_of_lock(inode: int) -> int:
    """The uid of the process that /proc/locks lists for this file; -1 if not known."""
    with suppress(OSError), open("/proc/locks") as file:
        for line in file:
            fields = line.split()
            if "FLOCK" in fields and fields[5].endswith(f":{inode}"):
                return _uid_of(fields[4])
    return -1


def _uid_of(pid: str) -> int:
    """The real uid of a process. Not the owner of its /proc folder, which a process can change."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))


def holder_name(uid: int) -> str:
    """The holder of a lease as text: `gflow of bob`."""
    try:
        return f"gflow of {pwd.getpwuid(uid).pw_name}"
    except (KeyError, OverflowError):
        return "gflow of another user"
