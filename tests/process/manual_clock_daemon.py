"""The daemon as it is, but with a clock that a test sets: see `MANUAL_CLOCK`.

The file has the time on both clocks, and how often the daemon is to be woken as if a timer had run out.
Beside it the daemon writes how often it was.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from gflow.core.events import Tick
from gflow.core.model import Moment
from gflow.daemon.loop import timers
from gflow.daemon.loop.loop import Loop
from gflow.daemon.main import run
from gflow.daemon.settings import settings_for

CLOCK_FILE = Path(os.environ["MANUAL_CLOCK"])
LOOK_S = 0.002


def read_clock() -> tuple[Moment, int]:
    wall, boot, ticks = CLOCK_FILE.read_text().split()
    return Moment(float(wall), float(boot)), int(ticks)


class ManualClockLoop(Loop):
    """Wakes up when the clock file says so."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._woken = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        done = 0
        while True:
            if read_clock()[1] > done:
                await self.ask(lambda at: Tick(at=at))
                done += 1
                CLOCK_FILE.with_suffix(".done").write_text(str(done))
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    timers.now = lambda: read_clock()[0]
    flags = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    sys.exit(
        run(settings_for({name.removeprefix("--"): value for name, value in flags.items()}), ManualClockLoop)
    )
