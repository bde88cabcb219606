"""Traces a process of a job from outside the job, and never waits for it.

python tracing.py [--hold] [--thread] [--uids R,E,S] PID|THREAD…    prints `ready` when it traces all of them

`--hold`: a process that it traces stops on its way out and waits there for the tracer. `--thread`: not the
first thread of the tracer is the one that traces. `--uids`: have these
real, effective and saved uids afterwards.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import threading
import time

PTRACE_SEIZE = 0x4206
PTRACE_O_TRACEEXIT = 0x40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--thread", action="store_true")
    parser.add_argument("--uids")
    parser.add_argument("pids", type=int, nargs="+")
    options = parser.parse_args()
    if options.thread:
        threading.Thread(target=trace, args=[options]).start()
    else:
        trace(options)


def trace(options: argparse.Namespace) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for pid in options.pids:
        if libc.ptrace(PTRACE_SEIZE, pid, None, PTRACE_O_TRACEEXIT if options.hold else None):
            print(f"{pid} cannot be traced: errno {ctypes.get_errno()}", file=sys.stderr, flush=True)
            os._exit(1)
    if options.uids:
        os.setresuid(*map(int, options.uids.split(",")))
    print("ready", flush=True)
    time.sleep(600)


main()
