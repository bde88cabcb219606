"""Log rotation: keep a job's logs under their cap while the job keeps writing.

The job holds the log open for appending, so the file itself must stay. Its content is copied to `<log>.1`,
one slice at a time so that the shim never blocks for long, and then removed from the log. Where the file
system can remove the beginning of a file (ext4, xfs), output written meanwhile is kept, and the last,
partial block stays in the log. Elsewhere the file is truncated, which loses output written at that moment.

The log is cut before `<log>.1` gets its name. A reader that follows the log and sees a new `.1` knows that
exactly the content of `.1` was removed from the log.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from contextlib import suppress

# The interval between looks is chosen so that at most this part of the cap is written in it, at the last
# observed rate and, while the log grows at all, at the highest plausible rate (bytes/s).
SHARE = 1 / 4
MOST_RATE = 1 << 30
LOOK_LEAST_S, LOOK_S = 0.005, 2.0
# The interval doubles up to this for a log that does not grow: with many jobs the looks add up.
LOOK_QUIET_S = 4.0
# `gjob log -f` looks every 50 ms and must see every `.1`.
BETWEEN_CUTS_S = 0.1
# The pause doubles up to this after a failed copy (disk full).
LOOK_MOST_S = 60.0
SLICE = 16 << 20
# Maximum number of slices for output that was written during the copy.
LAST_SLICES = 64
COLLAPSE_RANGE = 0x08
_libc = ctypes.CDLL(None, use_errno=True)


class Logs:
    """The logs of one job. `look` does one bounded piece of work; `next_s`: seconds until the next look."""

    def __init__(self, paths: set[str], cap: int) -> None:
        self._paths = sorted(paths)
        self._cap = cap
        self._rotation: Rotation | None = None
        self._pause_s = LOOK_S
        self._size, self._seen_at = 0, time.monotonic()
        self._usual_s = self.next_s = min(LOOK_S, max(0.01, SHARE * cap / MOST_RATE))

    def look(self) -> float:
        """Check the sizes or continue a rotation. Seconds until the next look; 0: there is more to do."""
        try:
            self._rotation = self._rotation or self._begin_rotation()
            if self._rotation is None:
                return self.next_s
            if self._rotation.step():
                return 0.0
            self._rotation = None
            self._pause_s = LOOK_S
            return BETWEEN_CUTS_S
        except OSError:
            self.abandon()
            self._pause_s = min(LOOK_MOST_S, self._pause_s * 2)
            return self._pause_s

    def abandon(self) -> None:
        """Stop a rotation in progress and leave the log as it is."""
        if self._rotation is not None:
            self._rotation.abandon()
            self._rotation = None

    def _begin_rotation(self) -> Rotation | None:
        total = 0
        for path in self._paths:
            with suppress(FileNotFoundError):
                size = os.stat(path).st_size
                if size > self._cap:
                    return Rotation(path)
                total += size
        self._pace(total, time.monotonic())
        return None

    def _pace(self, total: int, now: float) -> None:
        """Choose the time of the next look by how much the logs have grown since the last one."""
        grown = total - self._size if total >= self._size else total
        passed_s = max(now - self._seen_at, 0.001)
        self._size, self._seen_at = total, now
        if grown:
            self.next_s = max(LOOK_LEAST_S, min(self._usual_s, SHARE * self._cap * passed_s / grown))
        else:
            self.next_s = min(LOOK_QUIET_S, self.next_s * 2)


class Rotation:
    """The rotation of one log to `.1`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._new = path + ".1.new"
        self._copied = 0
        self._log = self._copy = -1
        try:
            self._log = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._copy = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Two jobs may share a log: only one of them rotates it.
            fcntl.flock(self._copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._copy), os.stat(self._new)):
                raise BlockingIOError(f"{path} was just truncated")
            os.ftruncate(self._copy, 0)
        except OSError:
            self._close()
            raise
        status = os.fstat(self._log)
        # fallocate() removes whole blocks only, and not up to the end of the file.
        block = max(4096, status.st_blksize)
        self._size = (status.st_size - 1) // block * block

    def step(self) -> bool:
        """Copy a slice or, when all is copied, cut the log. True: there is more to do."""
        if self._copied < self._size:
            if not self._copy_slice(self._size - self._copied):
                raise OSError(f"{self._path} was truncated by another process")
            return True
        self._cut()
        os.rename(self._new, self._path + ".1")
        self._close()
        return False

    def abandon(self) -> None:
        with suppress(OSError):
            os.unlink(self._new)
        self._close()

    def _copy_slice(self, most: int) -> int:
        count = os.sendfile(self._copy, self._log, self._copied, min(SLICE, most))
        self._copied += count
        return count

    def _cut(self) -> None:
        if remove_beginning(self._log, self._size):
            return
        if os.fstat(self._log).st_size < self._copied:
            raise OSError(f"{self._path} was truncated by another process")
        for _ in range(LAST_SLICES):
            if not self._copy_slice(SLICE):
                break
        os.ftruncate(self._log, 0)

    def _close(self) -> None:
        for fd in (self._log, self._copy):
            if fd >= 0:
                os.close(fd)


def remove_beginning(fd: int, size: int) -> bool:
    """Remove the first bytes of a file, if its file system can. Writers that append are not disturbed."""
    length = ctypes.c_long(size)
    return size > 0 and not _libc.fallocate(fd, COLLAPSE_RANGE, ctypes.c_long(0), length)
