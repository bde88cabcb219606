"""Progress reports of jobs on a cluster: lines of JSON that a job appends to a file in the shared folder.

The file of a run is `42.1.progress`. The writer empties it when it has become large.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

EVERY_S = 5.0
# Bytes of one file that are read at once; the rest is read the next time.
MOST_BYTES = 1 << 20


class ProgressFiles:
    """Reads what was appended since the last time. Used by the worker's thread: reading may block."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._read_at = 0.0
        # Bytes read so far, by run.
        self._offsets: dict[str, int] = {}

    def read_due(self, names: Iterable[str]) -> list[bytes]:
        """New lines of all these runs, every `EVERY_S`; runs that are not among them are forgotten."""
        now = self._clock()
        if now < self._read_at:
            return []
        self._read_at = now + EVERY_S
        known = set(names)
        self._offsets = {name: at for name, at in self._offsets.items() if name in known}
        return [line for name in known for line in self.read(name)]

    def read(self, name: str) -> list[bytes]:
        """New lines of one run. A line that is not complete yet is left for the next time."""
        offset = self._offsets.get(name, 0)
        try:
            with open(self._folder / f"{name}.progress", "rb") as file:
                if file.seek(0, 2) < offset:  # it was emptied
                    offset = 0
                file.seek(offset)
                text = file.read(MOST_BYTES)
        except OSError:  # no report yet, or the folder is away
            return []
        complete = text[: text.rfind(b"\n") + 1]
        self._offsets[name] = offset + len(complete)
        return complete.splitlines()
