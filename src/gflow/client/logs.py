"""Follow a growing log. It is read in chunks, because a single line may be as large as the disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, BinaryIO

from gflow.client import http
from gflow.client.wait import wait_for

CHUNK = 1 << 16
LOOK_AGAIN_S = 0.05
# Seconds after which a log that shrank without a new `.1` is read from its beginning.
PATIENCE_S = 1.0
# The daemon copies the log of a job on a cluster elsewhere for some minutes after it was asked for it.
RENEW_S = 300.0


def chunks(file: BinaryIO, start: int) -> Iterator[bytes]:
    """The file from `start` on."""
    file.seek(start)
    while chunk := file.read(CHUNK):
        yield chunk


def start_of_last(fd: int, lines: int) -> int:
    """Offset of the last `lines` lines, searched from the end."""
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


def follow_log(
    job: str, path: str, last: int | None = None, between: Callable[[], None] = lambda: None
) -> Generator[bytes, None, dict[str, Any]]:
    """Yield the job's output as it is written, through all attempts; return the final job.

    `between` is called at every poll, about twenty times a second.
    """
    ended = threading.Event()
    found: list[dict[str, Any] | Exception] = []

    def watch() -> None:
        try:
            found.append(wait_for(job))
        except Exception as error:  # raised by the reading thread
            found.append(error)
        ended.set()

    tail = Tail(path, last)
    renew_at = time.monotonic() + RENEW_S
    threading.Thread(target=watch, daemon=True).start()
    while True:
        over = ended.is_set()  # checked before reading, so that the read below gets the rest
        yield from tail.new(0.0 if over else PATIENCE_S)
        if over:
            break
        between()
        if time.monotonic() > renew_at:
            renew_at += RENEW_S
            http.get(http.job_path(job, "/log"))
        ended.wait(LOOK_AGAIN_S)
    (final,) = found
    if isinstance(final, Exception):
        raise final
    return final


class Tail:
    """Read position in a growing log. At its size cap, the beginning of the log is moved to `.1`."""

    def __init__(self, path: str, last: int | None = None) -> None:
        self._path = path
        self._old = _identity(path + ".1")
        self._offset = 0
        self._short_since: float | None = None
        if last is not None and os.path.exists(path):
            with open(path, "rb") as file:
                self._offset = start_of_last(file.fileno(), last)

    def new(self, patience_s: float) -> Iterator[bytes]:
        """Yield the bytes written since the last call."""
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb", buffering=0) as file:
            while True:
                chunk = os.pread(file.fileno(), CHUNK, self._offset)
                # Checked after reading: if `.1` is unchanged, the chunk was read before a rotation.
                old = _identity(self._path + ".1")
                if old != self._old:
                    yield from self._after_rotation(old)
                elif chunk:
                    self._offset += len(chunk)
                    yield chunk
                elif not self._was_emptied(file.fileno(), patience_s):
                    return

    def _after_rotation(self, old: tuple[int, int, int] | None) -> Iterator[bytes]:
        """Yield the unread part of `.1`, which was cut from the log's beginning, and adjust the offset."""
        self._old = old
        self._short_since = None
        if old is None:
            return
        with open(self._path + ".1", "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if self._offset < size:
                yield from chunks(file, self._offset)
        self._offset = max(0, self._offset - size)

    def _was_emptied(self, fd: int, patience_s: float) -> bool:
        """Whether the log was truncated; then continue from its beginning."""
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
    """Identity of a file, which changes when another file gets the same name."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
