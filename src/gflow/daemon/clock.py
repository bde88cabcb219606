"""The two clocks, read in one place and handed to the engine inside events."""

from __future__ import annotations

import time

from gflow.core.model import Moment


def now() -> Moment:
    return Moment(wall=time.time(), boot=time.clock_gettime(time.CLOCK_BOOTTIME))
