"""A mutant of the daemon that answers before it commits. The crash test must catch it."""

from __future__ import annotations

import asyncio
import sys

from gflow.daemon.loop.loop import Loop, Turn
from gflow.daemon.main import run
from gflow.daemon.settings import settings_for

HASTE_S = 0.05


class HastyLoop(Loop):
    """Answers first and commits a moment later."""

    def conclude(self, turn: Turn) -> None:
        self.answer(turn)
        self.perform(turn)
        asyncio.get_running_loop().call_later(HASTE_S, self.persist, turn)


if __name__ == "__main__":
    flags = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    sys.exit(run(settings_for({name.removeprefix("--"): value for name, value in flags.items()}), HastyLoop))
