"""The wall clock and the boot clock: reading them, and timers on them.

Both clocks are read only here; the engine gets the time inside events.

The kernel's boot clock starts at 0 with each boot. The engine's boot clock is the kernel's plus an offset.
The offset is chosen once per boot, from the wall clock, and stored in the database with the boot id. So a
time on the engine's clock stays valid for the next daemon, setting the wall clock does not change it, and
only the time between two boots depends on the wall clock.

asyncio's timers use the monotonic clock, which stops during suspend and ignores changes of the wall clock. A
timerfd on CLOCK_BOOTTIME counts suspended time. A timerfd on CLOCK_REALTIME with CANCEL_ON_SET becomes
readable when the clock is set, so that begin times are checked again.
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
    """A timer on one clock. It calls `ring` once per `set`."""

    def __init__(self, clock: int, ring: Callable[[], None]) -> None:
        self._fd = _libc.timerfd_create(clock, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._flags = TFD_TIMER_ABSTIME | (TFD_TIMER_CANCEL_ON_SET if clock == time.CLOCK_REALTIME else 0)
        self._ring = ring
        self._due: float | None = None
        asyncio.get_running_loop().add_reader(self._fd, self._ready)

    def set(self, due: float | None) -> None:
        """Ring at `due` on this clock (at once if it is past); None disarms the timer."""
        if due == self._due:
            return
        self._due = due
        # Zero disarms a timerfd, so a time before the epoch becomes 1 ns.
        due_ns = 0 if due is None else max(0, int(due * 1e9)) or 1
        setting = _Setting(value=_Timespec(*divmod(due_ns, 10**9)))
        if _libc.timerfd_settime(self._fd, self._flags if due_ns else 0, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _ready(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        except OSError:  # ECANCELED: the clock was set, so the caller must compute the due time again
            pass
        self._due = None
        self._ring()


# Name of the stored offset in the table meta.
CLOCK = "boot_clock"


class BootOffset(msgspec.Struct, frozen=True):
    """The stored offset of one boot, in seconds."""

    boot_id: str
    offset: float


_offset = 0.0


def now() -> Moment:
    return Moment(wall=time.time(), boot=time.clock_gettime(time.CLOCK_BOOTTIME) + _offset)


def of_kernel(boot: float) -> float:
    """Convert a time of the engine's boot clock to CLOCK_BOOTTIME."""
    return boot - _offset


def load_offset(text: str | None, boot_id: str, latest: float) -> str:
    """Use the stored offset if it belongs to this boot, else choose one; return the record to store.

    `latest`: the latest known time on the engine's clock. The clock never goes back behind it.
    """
    global _offset
    kept = None if text is None else msgspec.json.decode(text, type=BootOffset)
    if kept is None or kept.boot_id != boot_id:
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        kept = BootOffset(boot_id, max(began, latest - time.clock_gettime(time.CLOCK_BOOTTIME)))
    _offset = kept.offset
    return msgspec.json.encode(kept).decode()
