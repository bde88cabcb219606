"""Listens to NCCL while a launch runs, and says once over what its ranks talk."""

from __future__ import annotations

import os
import sys

from gflow.ml.launch import nccl
from gflow.ml.launch.network import seen

# Its log is looked at after the first of these, then after twice as long, and so on up to the second.
LOOK_S, LOOK_MOST_S = 1.0, 60.0


class Listener:
    """`folder`: of the launch's logs. `is_on`: there are several ranks. `tells`: of all nodes one does."""

    def __init__(self, folder: str, *, is_on: bool, tells: bool) -> None:
        self._folder, self._tells = folder, is_on and tells
        # Where NCCL is to write; empty: nowhere.
        self.file = os.path.join(folder, nccl.FILES) if is_on else ""
        # When it is to look next; None: it has heard all it wanted.
        self.due: float | None = None
        self._pause = LOOK_S
        self._heard = ""

    def begin(self, now: float) -> None:
        self.due = now + self._pause if self._tells else None

    def look(self, now: float) -> None:
        """Say it as soon as NCCL has said the same twice: channels are made one after the other."""
        if self.due is None or now < self.due:
            return
        self._pause = min(LOOK_MOST_S, self._pause * 2)
        self.due = now + self._pause
        words = self._words()
        if words and words == self._heard:
            self._tell(words)
        self._heard = words

    def end(self) -> None:
        """It is over: what was heard so far is all."""
        if self.due is not None and (words := self._words()):
            self._tell(words)

    def _words(self) -> str:
        adapters = [adapter.name for adapter in seen()[0] if adapter.is_active]
        return nccl.in_words(nccl.parse(nccl.read(self._folder)), adapters)

    def _tell(self, words: str) -> None:
        self.due = None
        sys.stderr.write(f"gflow: {words}\n")
        sys.stderr.flush()
