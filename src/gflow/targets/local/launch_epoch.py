"""The launch epoch: the span in which a run record that a shim has created cannot be lost.

A record is not synced to disk: that would delay a job's start by milliseconds. While the machine is up and
the file system of the run directory stays mounted, the kernel has the record, whether the disk has it or
not. After a power failure or a file system repair it may be missing although its job ran. So a missing
record proves that a run never began only within one epoch: the same boot, mount and directory.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress

from gflow.targets.local.run_record import boot_id

# See statx(2). The unique mount id is never reused; kernels before 6.8 do not have it.
STATX_BTIME, STATX_MNT_ID, STATX_MNT_ID_UNIQUE = 0x800, 0x1000, 0x4000
AT_FDCWD = -100
_BTIME, _MNT_ID = 0x50, 0x90  # offsets in struct statx
_libc = ctypes.CDLL(None, use_errno=True)


def launch_epoch(run_dir: str) -> str:
    """The present epoch of this run directory; empty if the directory does not exist."""
    try:
        found = os.stat(run_dir)
        born = _field(run_dir, STATX_BTIME, _BTIME)
        mount = _superblock(found.st_dev) or _mount(run_dir)
    except FileNotFoundError:
        return ""
    return f"{boot_id()} {mount} {found.st_dev}:{found.st_ino}:{born}"


def _superblock(device: int) -> str:
    """The sysfs entry of the file system's driver for this mount; empty: none, as for NFS or overlays.

    Its inode number is new for each mount. Unlike a mount id, it is the same in every mount namespace.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(FileNotFoundError, PermissionError):
        name = os.path.basename(os.readlink(f"/sys/dev/block/{number}"))
        for driver in sorted(os.listdir("/sys/fs")):
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                return f"{driver}:{os.stat(f'/sys/fs/{driver}/{name}').st_ino}"
    return ""


def _mount(path: str) -> str:
    """The id of the mount that this directory is on; the unique id where the kernel has one."""
    unique = _field(path, STATX_MNT_ID_UNIQUE, _MNT_ID)
    return f"mount:{unique or _field(path, STATX_MNT_ID, _MNT_ID)}"


def _field(path: str, mask: int, offset: int) -> int:
    """A 64-bit field of statx; 0 if this kernel or file system does not have it."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statx(AT_FDCWD, os.fsencode(path), 0, mask, buffer):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    (known,) = struct.unpack_from("=I", buffer)
    if not known & mask:
        return 0
    if mask == STATX_BTIME:
        seconds, nanoseconds = struct.unpack_from("=qI", buffer, offset)
        return int(seconds * 1_000_000_000 + nanoseconds)
    (value,) = struct.unpack_from("=Q", buffer, offset)
    return int(value)
