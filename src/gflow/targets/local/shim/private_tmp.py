"""A job's own /tmp and /dev/shm: a mount namespace that the child enters while it is still root.

`native/private_tmp.c` does the same in C. Standard library only: the shim imports this.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress

from gflow.targets.local import run_record

_libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_SLAVE = 2, 4, 0x1000, 0x4000, 0x80000
SHARED_MEMORY = "/dev/shm"


def enter(folder: str) -> None:
    """Mount this folder on /tmp and an empty file system on /dev/shm, for this process alone."""
    with suppress(FileExistsError):  # only root can write to the folder above it
        os.mkdir(folder, 0o700)
    os.chmod(folder, 0o1777)
    shared = os.statvfs(SHARED_MEMORY)
    size = f",size={shared.f_blocks * shared.f_frsize}" if shared.f_blocks else ""
    _check(_libc.unshare(CLONE_NEWNS))
    _mount(None, "/", None, MS_REC | MS_SLAVE)
    _mount(folder, "/tmp", None, MS_BIND)
    _mount("tmpfs", SHARED_MEMORY, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777{size}")


def join(pid: int, started: int) -> None:
    """Enter the mount namespace of a job's process, which started at this time."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if run_record.start_time(pid) != started:
            raise ProcessLookupError(errno.ESRCH, "the job is over")
        _check(_libc.setns(namespace, CLONE_NEWNS))
    finally:
        os.close(namespace)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None))


def _check(result: int) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"no /tmp of its own: {os.strerror(error)}")
