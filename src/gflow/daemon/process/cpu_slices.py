"""Asks kernel and interpreter to be served soon rather than long.

The daemon and its shims do little at a time, and a job waits for each of them. Since Linux 6.12
a process may ask for short slices of the CPU and is then given one sooner; older kernels refuse.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SHORT_SLICE_NS = 100_000
# How long a thread of ours that computes may keep the loop's waiting for the interpreter. Python's own 5 ms
# made callers wait twice as long while GPUs were looked at.
THREAD_SLICE_S = 0.0005
_NUMBER = {"x86_64": 314, "aarch64": 274}


def ask_for_short_slices() -> bool:
    """Whether the kernel took it; the interpreter always does."""
    sys.setswitchinterval(THREAD_SLICE_S)
    return ask_for_slices(SHORT_SLICE_NS)


def ask_for_slices(nanoseconds: int) -> bool:
    """Whether the kernel took it; 0: the usual ones."""
    number = _NUMBER.get(platform.machine())
    if number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wish = struct.pack("=IIQiIQQQ", 48, 0, 0, nice, 0, nanoseconds, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    refused: int = libc.syscall(
        ctypes.c_long(number), ctypes.c_int(0), ctypes.c_char_p(wish), ctypes.c_uint(0)
    )
    return not refused
