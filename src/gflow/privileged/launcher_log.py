"""The log of the launcher: a line for each start, stop, signal and refusal, in a file of root's."""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from gflow.privileged import messages

daemon_log = logging.getLogger("gflow.daemon")
# The file is rotated when it is larger; as many older files are kept.
MOST_BYTES, OLDER_FILES = 16 << 20, 4


class LauncherLog(logging.Handler):
    """Writes each line at once: what the launcher does next is logged also if it is killed.

    A line that cannot be written is counted, and jobs go on. The next line says how many are lost.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._second, self._stamp = 0, ""
        self._fd = _open(path)
        self._size = os.fstat(self._fd).st_size
        # Lines that are lost since the last one that was written, and whether the file ends within a line.
        self._lost, self._is_cut = 0, False

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage() if record.exc_info is None else self.format(record)
        self._write(record.levelname, text, int(record.created))

    def note(self, text: str) -> None:
        """Log a line without what makes `logging` slow."""
        self._write("INFO", text, int(time.time()))

    def _write(self, level: str, text: str, second: int) -> None:
        with self.lock or nullcontext():
            if second != self._second:
                self._second, self._stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            line = text.encode("unicode_escape").decode()  # a word of a user makes no second line
            try:
                if self._lost:
                    self._report_lost()
                self._append(f"{level} {line}")
            except OSError as error:
                self._lost += 1
                if self._lost == 1:
                    daemon_log.error("lines of %s are lost: %s", self._path, error.strerror)
            if self._size > MOST_BYTES:
                self._rotate()

    def _report_lost(self) -> None:
        self._append(f"WARNING {self._lost} earlier lines could not be written")
        daemon_log.warning("%d lines of %s were lost", self._lost, self._path)
        self._lost = 0

    def _append(self, line: str) -> None:
        """Write a line. OSError: not all of it."""
        data = f"{self._stamp} {line}\n".encode()
        if self._is_cut:
            data = b"\n" + data
        written = os.write(self._fd, data)
        self._size += written
        self._is_cut = written < len(data)
        if self._is_cut:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rotate(self) -> None:
        """Begin another file. If that fails, the old file stays in use, and the next rotation tries again."""
        paths = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, OLDER_FILES + 1))]
        self._size = 0
        with suppress(OSError):
            fd = _open(next_path := Path(f"{self._path}.new"))
            for newer, older in reversed(list(pairwise(paths))):
                with suppress(FileNotFoundError):
                    newer.rename(older)
            next_path.rename(self._path)
            os.close(self._fd)
            self._fd = fd


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def describe(message: Any) -> str:
    """A message for the log: the run or the user that it names, and no environment."""
    what = type(message).__struct_config__.tag
    match message:
        case messages.Order():
            return f"{what} {message.run.name} uid {message.uid} {' '.join(message.command)!a:.200}"
        case messages.Message():
            return f"{what} {message.run.name}"
        case messages.RunAs():
            return f"{what} uid {message.uid} {message.program} {' '.join(message.words)!a:.200}"
    return f"{what} {message!a:.200}"
