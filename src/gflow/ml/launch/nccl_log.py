"""Polls NCCL's log during a launch, and prints once which transports the ranks use."""

from __future__ import annotations

import os
import sys

from gflow.ml.launch import nccl
from gflow.ml.launch.network import detect

# Polling interval of the log: it starts at the first value and doubles up to the second.
LOOK_S, LOOK_MOST_S = 1.0, 60.0


class NcclLogReader:
    """`folder`: the launch's logs. `is_on`: there are several ranks. `is_reporter`: this node prints."""

    def __init__(self, folder: str, *, is_on: bool, is_reporter: bool) -> None:
        self._folder, self._is_reporter = folder, is_on and is_reporter
        # Value for NCCL_DEBUG_FILE; empty: no log.
        self.file = os.path.join(folder, nccl.FILES) if is_on else ""
        # Time of the next poll; None: done.
        self.due: float | None = None
        self._pause = LOOK_S
        self._last_words = ""

    def begin(self, now: float) -> None:
        self.due = now + self._pause if self._is_reporter else None

    def look(self, now: float) -> None:
        """Print the transports once two polls agree: NCCL creates channels one after the other."""
        if self.due is None or now < self.due:
            return
        self._pause = min(LOOK_MOST_S, self._pause * 2)
        self.due = now + self._pause
        words = self._words()
        if words and words == self._last_words:
            self._print(words)
        self._last_words = words

    def end(self) -> None:
        """The launch has ended: print what the log has."""
        if self.due is not None and (words := self._words()):
            self._print(words)

    def _words(self) -> str:
        adapters = [adapter.name for adapter in detect()[0] if adapter.is_active]
        return nccl.describe(nccl.parse(nccl.read(self._folder)), adapters)

    def _print(self, words: str) -> None:
        self.due = None
        sys.stderr.write(f"gflow: {words}\n")
        sys.stderr.flush()
