"""Requests short CPU time slices (sched_setattr) and a short GIL switch interval, for latency.

The daemon and its shims run for short times, and jobs wait for them. Since Linux 6.12 a process may request
short CPU slices and is then scheduled sooner; older kernels refuse.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SHORT_SLICE_NS = 100_000
# Seconds that a computing thread may hold the GIL while the loop waits for it. Python's default of 5 ms
# doubled the latency of requests while GPUs were polled.
THREAD_SLICE_S = 0.0005
# Number of the system call sched_setattr.
_SYSCALL = {"x86_64": 314, "aarch64": 274}


def ask_for_short_slices() -> bool:
    """Request short slices and a short switch interval; whether the kernel accepted the slices."""
    sys.setswitchinterval(THREAD_SLICE_S)
    return ask_for_slices(SHORT_SLICE_NS)


def ask_for_slices(nanoseconds: int) -> bool:
    """Request CPU slices of this length (0: the default); whether the kernel accepted."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, nice, 0, nanoseconds, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    refused: int = libc.syscall(
        ctypes.c_long(number), ctypes.c_int(0), ctypes.c_char_p(attributes), ctypes.c_uint(0)
    )
    return not refused
