"""Reading a job's log: all of it, an end of it, or as it grows."""

from __future__ import annotations

import os
import threading
from collections import deque
from itertools import islice

from gflow.cli.waiting import wait_for
from gflow.client import fast

CHUNK = 1 << 16
LOOK_AGAIN_S = 0.05


def print_lines(path: str, first: int | None, last: int | None) -> int:
    """Copy the log, or some lines of it, to standard output, byte for byte."""
    if not os.path.exists(path):
        return 0  # nothing was written yet
    with open(path, "rb") as file:
        if first is not None:
            fast.write(1, b"".join(islice(file, first)))
        elif last is not None:
            fast.write(1, b"".join(deque(file, maxlen=last)))
        else:
            while chunk := file.read(CHUNK):
                fast.write(1, chunk)
    return 0


def follow(job: str, path: str) -> int:
    """Copy the log as it grows, until the job is final and all of it is printed."""
    ended = threading.Event()

    def watch() -> None:
        try:
            wait_for(job)
        finally:
            ended.set()

    threading.Thread(target=watch, daemon=True).start()
    offset = 0
    while True:
        over = ended.is_set()  # asked before reading: what is read afterwards is the rest
        offset = _copy_from(path, offset)
        if over:
            return 0
        ended.wait(LOOK_AGAIN_S)


def _copy_from(path: str, offset: int) -> int:
    if not os.path.exists(path):
        return offset
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < offset:  # the log was cut at its cap
            offset = 0
        file.seek(offset)
        while chunk := file.read(CHUNK):
            fast.write(1, chunk)
            offset += len(chunk)
    return offset
