"""The log of the launcher: a line for each start, stop, signal and refusal, in a file of root's."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from gflow.privileged import messages

# The file is rotated when it is larger; as many older files are kept.
MOST_BYTES, OLDER_FILES = 16 << 20, 4


class LauncherLog(logging.Handler):
    """Writes all lines of one turn of the loop at once, so that a line costs little."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._lines: list[str] = []
        self._second, self._stamp = 0, ""
        self._open()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage() if record.exc_info is None else self.format(record)
        self._write(record.levelname, text, int(record.created))

    def note(self, text: str) -> None:
        """Log a line in the thread of the loop, without what makes `logging` slow."""
        self._write("INFO", text, int(time.time()))

    def _write(self, level: str, text: str, second: int) -> None:
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        line = text.encode("unicode_escape").decode()  # a word of a user makes no second line
        self._lines.append(f"{self._stamp} {level} {line}\n")
        if len(self._lines) == 1:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
            except RuntimeError:
                self.flush()

    def flush(self) -> None:
        with self.lock or nullcontext(), suppress(OSError):  # the disk is full: jobs go on
            data = "".join(self._lines).encode()
            self._lines.clear()
            self._size += os.write(self._fd, data)
            if self._size > MOST_BYTES:
                self._rotate()

    def close(self) -> None:
        self.flush()
        super().close()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        paths = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, OLDER_FILES + 1))]
        for newer, older in reversed(list(pairwise(paths))):
            with suppress(FileNotFoundError):
                newer.rename(older)
        os.close(self._fd)
        self._open()


def describe(message: Any) -> str:
    """A message for the log: whom it is about, and no environment."""
    what = type(message).__struct_config__.tag
    match message:
        case messages.Order():
            return f"{what} {message.run.name} uid {message.uid} {' '.join(message.command)!a:.200}"
        case messages.Message():
            return f"{what} {message.run.name}"
        case messages.RunAs():
            return f"{what} uid {message.uid} {message.program} {' '.join(message.words)!a:.200}"
    return f"{what} {message!a:.200}"
