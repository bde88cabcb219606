"""The daemon's log: each traceback is logged once, and the size of the file is bounded."""

from __future__ import annotations

import logging
import os
import stat
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

# The file is rotated when it is larger; one older file is kept.
MOST_BYTES = 16 << 20
# Number of innermost frames that identify an error.
FRAMES = 3
# Counts of the same error at which one line is logged again.
LOGGED_COUNTS = frozenset(10**power for power in range(1, 13))
MINUTE_S = 60.0
FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"

log = logging.getLogger("gflow.api")


def set_up(path: Path) -> None:
    """Log to standard error. If that is the file at `path` (as under `gflowd up`), it is rotated."""
    handler = _Bounded(path)
    handler.addFilter(Once())
    logging.basicConfig(format=FORMAT, handlers=[handler])


class Once(logging.Filter):
    """Passes the first traceback of each place in the code, then one line at 10, 100, 1000, … of them.

    Users can cause some errors as often as they like.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[object, ...]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind, error, frames = record.exc_info or (None, None, None)
        if kind is None:
            return True
        inner = traceback.extract_tb(frames)[-FRAMES:]
        place = kind, *((frame.filename, frame.lineno) for frame in inner)
        self._counts[place] += 1
        count = self._counts[place]
        if count == 1:
            return True
        record.msg = f"{record.getMessage().strip()}: {kind.__name__}: {error}, {count} times so far"
        record.args = record.exc_info = record.exc_text = None
        return count in LOGGED_COUNTS


class PerMinute(logging.Filter):
    """Passes the first warning of each text, and then a line per minute with the number of repetitions.

    For warnings that any client can cause. `later` is the loop's `call_later`.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        super().__init__()
        self._later = later
        self._counts: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info or record.levelno > logging.WARNING:
            return True
        if record.msg in self._counts:
            self._counts[record.msg] += 1
            return False
        self._begin(record.msg)
        return True

    def _begin(self, text: str) -> None:
        self._counts[text] = 0
        self._later(MINUTE_S, partial(self._log_count, text))

    def _log_count(self, text: str) -> None:
        count = self._counts.pop(text)
        if count:
            log.warning("%s: %d times more within a minute", text.rstrip("."), count)
            self._begin(text)


class _Bounded(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, and rotates the file at `path` when it is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        with suppress(OSError):  # on a read-only disk the file does not grow
            if self._is_full():
                rotate(self._path)

    def _is_full(self) -> bool:
        found = os.fstat(2)
        if found.st_size < MOST_BYTES or not stat.S_ISREG(found.st_mode):
            return False
        return os.path.samestat(found, os.stat(self._path, follow_symlinks=False))


def rotate(path: Path) -> None:
    """Replace the file at `path` by a new one, and redirect standard output and error to it."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(new, flags, 0o600)
    try:
        shares_output = os.path.samestat(os.fstat(1), os.fstat(2))
        path.rename(path.with_name(path.name + ".1"))
        new.rename(path)
        os.dup2(fd, 2)
        if shares_output:
            os.dup2(fd, 1)
    finally:
        os.close(fd)
