"""The daemon's own log: a traceback once for each place in the code, and a bound on the size of the file."""

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

# When the file is larger, another one is begun; the one before is kept beside it.
MOST_BYTES = 16 << 20
# Innermost frames that tell one error from another.
FRAMES = 3
# An error that has come so often is told again, in a line.
TELL_AGAIN = frozenset(10**power for power in range(1, 13))
MINUTE_S = 60.0

log = logging.getLogger("gflow.api")


def set_up(path: Path) -> None:
    """Log to standard error. If that is the file at `path` (`gflowd up` makes it so), it is kept small."""
    handler = _Bounded(path)
    handler.addFilter(Once())
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", handlers=[handler])


class Once(logging.Filter):
    """Passes a traceback when its place is new, and then a line with a count at 10, 100, 1000 of them.

    Users can make some errors happen as often as they like.
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
        return count in TELL_AGAIN


class PerMinute(logging.Filter):
    """Passes a warning of a logger when it is new, and then a line a minute with how often it came again.

    For warnings that strangers can cause. `later` is the loop's `call_later`.
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
        self._later(MINUTE_S, partial(self._tell, text))

    def _tell(self, text: str) -> None:
        count = self._counts.pop(text)
        if count:
            log.warning("%s: %d times more within a minute", text.rstrip("."), count)
            self._begin(text)


class _Bounded(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, and begins another file when the one at `path` is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        with suppress(OSError):  # on a read-only disk the file does not grow either
            if self._is_full():
                begin_anew(self._path)

    def _is_full(self) -> bool:
        ours = os.fstat(2)
        if ours.st_size < MOST_BYTES or not stat.S_ISREG(ours.st_mode):
            return False
        return os.path.samestat(ours, os.stat(self._path, follow_symlinks=False))


def begin_anew(path: Path) -> None:
    """Make another file the one at `path`, and our standard output and error."""
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
