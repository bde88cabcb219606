"""Keeping a job's logs under their cap while the job writes on.

The job appends to a file that it has open, so that file must stay: what it has is copied to
`<log>.1`, a slice at a time (nobody may wait for a gigabyte), and then taken out of it. Where the
file system can remove the beginning of a file (ext4, xfs) nothing is lost that the job writes
meanwhile, and the last, partial block stays in the log. Elsewhere the file is emptied, which
loses what is written in that very moment.

The log is cut before `<log>.1` gets its name: whoever follows the log and sees another `.1`
knows that exactly what is in it is gone from the log.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from contextlib import suppress

# Until the next look no more than this part of the cap is written, at the rate that was seen last; and
# at the highest that a job is likely to come up with (bytes/s), as long as its log grows at all.
SHARE = 1 / 4
MOST_RATE = 1 << 30
LOOK_LEAST_S, LOOK_S = 0.005, 2.0
# A log that does not grow is looked at ever more rarely: with many jobs the looking adds up.
LOOK_QUIET_S = 4.0
# `gjob log -f` looks every 50 ms, and is to see every `.1`.
BETWEEN_CUTS_S = 0.1
# After a copy that failed (the disk is full) the next one waits longer.
LOOK_MOST_S = 60.0
SLICE = 16 << 20
# What was written while the copy was made is copied in as many slices at most.
LAST_SLICES = 64
COLLAPSE_RANGE = 0x08
_libc = ctypes.CDLL(None, use_errno=True)


class Logs:
    """The logs of one job. `look` does a little of what is due and says when to look again.

    `next_s`: seconds until then.
    """

    def __init__(self, paths: set[str], cap: int) -> None:
        self._paths = sorted(paths)
        self._cap = cap
        self._rotation: Rotation | None = None
        self._pause_s = LOOK_S
        self._size, self._seen_at = 0, time.monotonic()
        self._usual_s = self.next_s = min(LOOK_S, max(0.01, SHARE * cap / MOST_RATE))

    def look(self) -> float:
        """Seconds until the next look; 0: there is more to do."""
        try:
            self._rotation = self._rotation or self._begun()
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
        """Leave the log as it is: nobody will look again."""
        if self._rotation is not None:
            self._rotation.abandon()
            self._rotation = None

    def _begun(self) -> Rotation | None:
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
        """Choose when to look again, by how much the logs have grown since the last look."""
        grown = total - self._size if total >= self._size else total
        passed_s = max(now - self._seen_at, 0.001)
        self._size, self._seen_at = total, now
        if grown:
            self.next_s = max(LOOK_LEAST_S, min(self._usual_s, SHARE * self._cap * passed_s / grown))
        else:
            self.next_s = min(LOOK_QUIET_S, self.next_s * 2)


class Rotation:
    """One log on its way to `.1`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._new = path + ".1.new"
        self._copied = 0
        self._log = self._copy = -1
        try:
            self._log = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._copy = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Two jobs may share a log; then one of them cuts it.
            fcntl.flock(self._copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._copy), os.stat(self._new)):
                raise BlockingIOError(f"{path} was just cut")
            os.ftruncate(self._copy, 0)
        except OSError:
            self._close()
            raise
        status = os.fstat(self._log)
        # The beginning that is taken out is made of whole blocks, and something must follow it.
        block = max(4096, status.st_blksize)
        self._size = (status.st_size - 1) // block * block

    def step(self) -> bool:
        """Copy a slice or, when all is copied, cut the log. True: there is more to do."""
        if self._copied < self._size:
            if not self._copy_slice(self._size - self._copied):
                raise OSError(f"{self._path} was cut by somebody else")
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
            raise OSError(f"{self._path} was cut by somebody else")
        for _ in range(LAST_SLICES):
            if not self._copy_slice(SLICE):
                break
        os.ftruncate(self._log, 0)

    def _close(self) -> None:
        for fd in (self._log, self._copy):
            if fd >= 0:
                os.close(fd)


def remove_beginning(fd: int, size: int) -> bool:
    """Take the first bytes out of a file, if its file system can; whoever appends to it goes on."""
    length = ctypes.c_long(size)
    return size > 0 and not _libc.fallocate(fd, COLLAPSE_RANGE, ctypes.c_long(0), length)
