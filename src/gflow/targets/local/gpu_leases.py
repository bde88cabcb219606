"""Leases: one lock per GPU in a folder that all users of the machine share.

Daemons of different users know nothing of each other; the shim of every job holds the locks
of its GPUs for the job's life, so no GPU is given out twice whoever asks. A lock is an flock
on a file named after the GPU's UUID: it dies with its holder, and taking one needs no right
to write somebody else's file.

Between people's own daemons that is a courtesy: anybody may hold a lock, as anybody may use the card. The
daemon of the whole machine rules its GPUs. Its lock files are root's alone, so nobody else can hold them, its
jobs do not inherit them, and locks of others say nothing to it: it goes by the processes on a card.

Standard library only: this runs beside jobs.
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

# The end of an attempt whose GPUs another user's daemon had given out first.
LEASED = "Leased"
# Whoever may write to the folder may have put anything there: no link is followed, no pipe waited for.
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# How long the gate of a GPU that is shared may be shut.
GATE_S = 1.0
FOLDERS = ("/run/lock/gflow", "/tmp/gflow-leases")


def lease_folder(folders: tuple[str, ...] = FOLDERS) -> str:
    """The shared folder: the first that is there or can be made. Empty: this machine has none."""
    chosen = os.environ.get("GFLOW_LEASE_DIR")
    for folder in (chosen,) if chosen else folders:
        with suppress(OSError):
            with suppress(FileExistsError):
                os.mkdir(folder)
                os.chmod(folder, 0o1777)
            if os.geteuid() == 0:
                _own(folder)
            found = os.lstat(folder)
            if stat.S_ISDIR(found.st_mode) and (found.st_mode & stat.S_ISVTX or found.st_uid == os.getuid()):
                return folder
    return ""


def _own(folder: str) -> None:
    """Root takes a folder that somebody else made: its owner could throw away the locks of others."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid:
            os.fchown(fd, 0, 0)
            os.fchmod(fd, 0o1777)
    finally:
        os.close(fd)


def take(paths: Iterable[str], sharing: str = "", *, rules: bool = False) -> list[int] | None:
    """The leases of all these GPUs, or none. The job inherits them: if its shim is killed, they last as
    long as the job's own process does.

    `rules`: we are of the machine's daemon. Its jobs cannot kill their shims, and would pass a lease on.
    `sharing`: the name of the daemon, for a job that shares its GPUs. Its jobs share with each
    other and with nobody else: only their own daemon knows how much memory is left.
    """
    held: list[int] = []
    for path in paths:
        got = _share(path, sharing, rules) if sharing else _lock(path, fcntl.LOCK_EX, rules)
        if got is None:
            release(held)
            return None
        held += got
    for fd in held:
        os.set_inheritable(fd, not rules)
    return held


def _lock(path: str, kind: int, rules: bool = False) -> list[int] | None:
    try:
        fd = _open(path, rules)
    except PermissionError:
        if _is_ruled(path):
            return None
        raise
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return [fd]


def _share(path: str, sharing: str, rules: bool) -> list[int] | None:
    """A shared lock on the GPU, which keeps exclusive jobs away, and one on our daemon's own file for
    it, which tells other daemons' shared jobs that it is taken. The gate makes looking and taking one act."""
    if not rules and _is_ruled(path):
        return None
    gate = _open(path + ".gate", rules)
    try:
        if not _passed(gate):
            return None
        folder, name = os.path.split(path)
        for other in os.listdir(folder):
            if other.startswith(name + ".shared-") and other != f"{name}.shared-{sharing}":
                if rules and not _is_ruled(f"{folder}/{other}"):
                    continue
                free = _lock(f"{folder}/{other}", fcntl.LOCK_EX)
                if free is None:
                    return None
                release(free)
        first = _lock(path, fcntl.LOCK_SH, rules)
        second = _lock(f"{path}.shared-{sharing}", fcntl.LOCK_SH, rules) if first else None
        if first is None or second is None:
            release(first or [])
            return None
        return first + second
    finally:
        os.close(gate)


def _passed(gate: int) -> bool:
    """Whether the gate was ours in time: others hold it for an instant, or mean no good."""
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


def holder_of(path: str, *, rules: bool = False) -> int | None:
    """The uid of whoever holds this lock; None: nobody. `rules`: nobody that the machine's daemon heeds."""
    if rules and not _is_ruled(path):
        return None
    try:
        fd = os.open(path, OPEN)
    except PermissionError:
        return 0 if _is_ruled(path) else None
    except OSError:
        return None
    try:
        # Exclusive, so that it also meets those who share. Whoever comes in this instant tries again.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner_of_lock(os.fstat(fd).st_ino)
    finally:
        os.close(fd)
    return None


def give_up(paths: Iterable[str]) -> None:
    """The machine's daemon goes: remove its lock files that no job of it holds."""
    for path in paths:
        with suppress(OSError):
            if _is_ruled(path) and (held := _lock(path, fcntl.LOCK_EX, rules=True)):
                os.unlink(path)
                release(held)


def _is_ruled(path: str) -> bool:
    """Whether this is a lock file of the machine's daemon: root's, and closed to everybody else."""
    with suppress(OSError):
        found = os.lstat(path)
        return stat.S_ISREG(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o077
    return False


def _open_ruled(path: str) -> int:
    """The lock file of the machine's daemon. What others made or may hold is replaced by a fresh one."""
    while True:
        if not _is_ruled(path):
            with suppress(FileNotFoundError):
                _remove(path)
            with suppress(FileExistsError):
                return os.open(path, OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(FileNotFoundError):
            return os.open(path, OPEN)


def _remove(path: str) -> None:
    """Take away what somebody put there; a folder, which may be full, is moved aside."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        os.rename(path, f"{path}.removed-{os.getpid()}-{time.monotonic_ns()}")


def _open(path: str, rules: bool = False) -> int:
    """The lock file, which anybody may open, whoever made it; of the machine's daemon, root alone.

    Not by O_CREAT alone: in a folder that all may write to, the kernel refuses that for files of others
    (fs.protected_regular). And with the right mode from the first instant, whatever the umask is.
    """
    if rules:
        return _open_ruled(path)
    if os.geteuid() == 0:
        _clear(path)
    fd = _open_or_make(path)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "somebody put something else there", path)
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


def _clear(path: str) -> None:
    """Root takes away what can be no lock."""
    with suppress(OSError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)


def _owner_of_lock(inode: int) -> int:
    """The uid of the process that /proc/locks names for this file; -1 if it cannot be told."""
    with suppress(OSError), open("/proc/locks") as file:
        for line in file:
            fields = line.split()
            if "FLOCK" in fields and fields[5].endswith(f":{inode}"):
                return _uid_of(fields[4])
    return -1


def _uid_of(pid: str) -> int:
    """Whose process this is. Not who owns its folder in /proc: a process can have that changed."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))


def shown(uid: int) -> str:
    """`gflow of bob`."""
    try:
        return f"gflow of {pwd.getpwuid(uid).pw_name}"
    except (KeyError, OverflowError):
        return "gflow of somebody else"
