"""Alarms on the two clocks. The kernel tells us, also after a suspend and when somebody sets the clock.

asyncio's timers run on the monotonic clock, which stops while the machine sleeps and knows
nothing of the wall clock. A timerfd on CLOCK_BOOTTIME counts sleep; one on CLOCK_REALTIME
with CANCEL_ON_SET becomes readable when the clock is set, so a begin time is looked at anew.

The two clocks, read in one place and handed to the engine inside events.

The kernel's boot clock begins at 0 with each boot. The engine's goes on: it is the kernel's plus an offset
that is fixed once for each boot, by the wall clock of that moment, and kept in the database with the boot's
identity. So a time on it means the same to the next daemon, setting the wall clock does not move it, and only
the time from one boot to the next goes by the wall clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

import msgspec

from gflow.core.model import Moment

TFD_NONBLOCK = os.O_NONBLOCK
TFD_CLOEXEC = os.O_CLOEXEC
TFD_TIMER_ABSTIME = 1
TFD_TIMER_CANCEL_ON_SET = 2


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Setting(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Calls back when its clock reaches a time, once per `set`."""

    def __init__(self, clock: int, ring: Callable[[], None]) -> None:
        self._fd = _libc.timerfd_create(clock, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._flags = TFD_TIMER_ABSTIME | (TFD_TIMER_CANCEL_ON_SET if clock == time.CLOCK_REALTIME else 0)
        self._ring = ring
        self._due: float | None = None
        asyncio.get_running_loop().add_reader(self._fd, self._ready)

    def set(self, due: float | None) -> None:
        """Ring at `due` on this clock (at once if that is past); None: be silent."""
        if due == self._due:
            return
        self._due = due
        # Zero would disarm, so the distant past is one nanosecond.
        whole = 0 if due is None else max(0, int(due * 1e9)) or 1
        setting = _Setting(value=_Timespec(*divmod(whole, 10**9)))
        if _libc.timerfd_settime(self._fd, self._flags if whole else 0, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _ready(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        except OSError:  # ECANCELED: the clock was set, so what is due must be asked anew
            pass
        self._due = None
        self._ring()


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
