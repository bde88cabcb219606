"""The two clocks, read in one place and handed to the engine inside events.

The kernel's boot clock begins at 0 with each boot. The engine's goes on: it is the kernel's plus an offset
that is fixed once for each boot, by the wall clock of that moment, and kept in the database with the boot's
identity. So a time on it means the same to the next daemon, setting the wall clock does not move it, and only
the time from one boot to the next goes by the wall clock.
"""

from __future__ import annotations

import time

import msgspec

from gflow.core.model import Moment

# The name under which the offset is kept.
CLOCK = "boot_clock"


class Kept(msgspec.Struct, frozen=True):
    """The offset of one boot, in seconds."""

    boot_id: str
    offset: float


_offset = 0.0


def now() -> Moment:
    return Moment(wall=time.time(), boot=time.clock_gettime(time.CLOCK_BOOTTIME) + _offset)


def of_kernel(boot: float) -> float:
    """A time on the engine's boot clock as CLOCK_BOOTTIME has it."""
    return boot - _offset


def settle(text: str | None, boot_id: str, latest: float) -> str:
    """Go on with the kept offset if it is of this boot, else choose one; the record to keep.

    `latest`: the latest time on the engine's clock that is known, which it does not fall behind.
    """
    global _offset
    kept = None if text is None else msgspec.json.decode(text, type=Kept)
    if kept is None or kept.boot_id != boot_id:
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        kept = Kept(boot_id, max(began, latest - time.clock_gettime(time.CLOCK_BOOTTIME)))
    _offset = kept.offset
    return msgspec.json.encode(kept).decode()
