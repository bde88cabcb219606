"""Reading a job's log: all of it, an end of it, or as it grows.

Everything goes through in chunks: a line may be as long as the disk is large.
"""

from __future__ import annotations

import os
import threading
import time
from typing import BinaryIO

from gflow.client import fast
from gflow.client.waiting import wait_for

CHUNK = 1 << 16
LOOK_AGAIN_S = 0.05
# A log that is shorter than it was, and nothing tells where the rest went, is read anew after this long.
PATIENCE_S = 1.0


def print_lines(path: str, first: int | None, last: int | None) -> int:
    """Copy the log, or some lines of it, to standard output, byte for byte."""
    if not os.path.exists(path):
        return 0  # nothing was written yet
    with open(path, "rb", buffering=0) as file:
        if first is not None:
            _copy_first(file, first)
        else:
            _copy(file, 0 if last is None else start_of_last(file.fileno(), last))
    return 0


def _copy(file: BinaryIO, start: int) -> None:
    """Copy to standard output from `start` on."""
    file.seek(start)
    while chunk := file.read(CHUNK):
        fast.write(1, chunk)


def _copy_first(file: BinaryIO, lines: int) -> None:
    while lines and (chunk := file.read(CHUNK)):
        count = chunk.count(b"\n")
        if count >= lines:
            parts = chunk.split(b"\n", lines)
            chunk, count = b"\n".join(parts[:lines]) + b"\n", lines
        fast.write(1, chunk)
        lines -= count


def start_of_last(fd: int, lines: int) -> int:
    """Where the last `lines` lines begin, looking from the end."""
    end = os.fstat(fd).st_size
    if not lines:
        return end
    if end and os.pread(fd, 1, end - 1) == b"\n":
        end -= 1
    while end > 0:
        start = max(0, end - CHUNK)
        chunk = os.pread(fd, end - start, start)
        count = chunk.count(b"\n")
        if count >= lines:
            return start + len(chunk) - len(b"\n".join(chunk.split(b"\n")[-lines:]))
        lines -= count
        end = start
    return 0


# ---------------------------------------------------------------- as it grows


def follow(job: str, path: str, last: int | None) -> int:
    """Copy the log as it grows, through all attempts, until the job is final and all of it is printed."""
    ended = threading.Event()
    trouble: list[Exception] = []

    def watch() -> None:
        try:
            wait_for(job)
        except Exception as error:  # told by the thread that prints
            trouble.append(error)
        finally:
            ended.set()

    tail = Tail(path, last)
    threading.Thread(target=watch, daemon=True).start()
    while True:
        over = ended.is_set()  # asked before reading: what is read afterwards is the rest
        tail.copy_on(PATIENCE_S if not over else 0.0)
        if over:
            break
        ended.wait(LOOK_AGAIN_S)
    if trouble:
        raise trouble[0]
    return 0


class Tail:
    """A place in a log that grows, and that is cut at its cap: then its beginning goes to `.1`."""

    def __init__(self, path: str, last: int | None = None) -> None:
        self._path = path
        self._old = _identity(path + ".1")
        self._offset = 0
        self._short_since: float | None = None
        if last is not None and os.path.exists(path):
            with open(path, "rb") as file:
                self._offset = start_of_last(file.fileno(), last)

    def copy_on(self, patience_s: float) -> None:
        """Print what is new."""
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb", buffering=0) as file:
            while True:
                chunk = os.pread(file.fileno(), CHUNK, self._offset)
                # Asked after reading: if it is still the same, this was read before the log was cut.
                old = _identity(self._path + ".1")
                if old != self._old:
                    self._was_cut(old)
                elif chunk:
                    fast.write(1, chunk)
                    self._offset += len(chunk)
                elif not self._was_emptied(file.fileno(), patience_s):
                    return

    def _was_cut(self, old: tuple[int, int, int] | None) -> None:
        """What is in `.1` is gone from the log's beginning; print what was not yet read of it."""
        self._old = old
        self._short_since = None
        if old is None:
            return
        with open(self._path + ".1", "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if self._offset < size:
                _copy(file, self._offset)
        self._offset = max(0, self._offset - size)

    def _was_emptied(self, fd: int, patience_s: float) -> bool:
        """Whether somebody emptied the log, so that it is to be read from its beginning."""
        if os.fstat(fd).st_size >= self._offset:
            self._short_since = None
            return False
        now = time.monotonic()
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since < patience_s:
            return False
        self._offset = 0
        self._short_since = None
        return True


def _identity(path: str) -> tuple[int, int, int] | None:
    """Tells a file from another of the same name."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
