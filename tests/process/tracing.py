"""Traces a process of a job from outside the job, and never waits for it.

python tracing.py PID|PID/THREAD…    prints `ready` when it traces all of them
"""

from __future__ import annotations

import ctypes
import sys
import time

PTRACE_SEIZE = 0x4206


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for pid in sys.argv[1:]:
        if libc.ptrace(PTRACE_SEIZE, int(pid), None, None):
            sys.exit(f"{pid} cannot be traced: errno {ctypes.get_errno()}")
    print("ready", flush=True)
    time.sleep(600)


main()
