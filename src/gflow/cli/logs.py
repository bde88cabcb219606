"""Reading a job's log: all of it, an end of it, or as it grows.

Everything goes through in chunks: a line may be as long as the disk is large.
"""

from __future__ import annotations

import os
import threading
from typing import BinaryIO

from gflow.client import fast
from gflow.client.logs import CHUNK, Tail, chunks, start_of_last
from gflow.client.waiting import wait_for

LOOK_AGAIN_S = 0.05
# A log that is shorter than it was, and nothing tells where the rest went, is read anew after this long.
PATIENCE_S = 1.0


def print_lines(path: str, first: int | None, last: int | None) -> int:
    """Copy the log, or some lines of it, to standard output, byte for byte."""
    if not os.path.exists(path):
        return 0  # nothing was written yet
    with open(path, "rb", buffering=0) as file:
        if first is not None:
            _copy_first(file, first)
        else:
            _copy(file, 0 if last is None else start_of_last(file.fileno(), last))
    return 0


def _copy(file: BinaryIO, start: int) -> None:
    """Copy to standard output from `start` on."""
    for chunk in chunks(file, start):
        fast.write(1, chunk)


def _copy_first(file: BinaryIO, lines: int) -> None:
    while lines and (chunk := file.read(CHUNK)):
        count = chunk.count(b"\n")
        if count >= lines:
            parts = chunk.split(b"\n", lines)
            chunk, count = b"\n".join(parts[:lines]) + b"\n", lines
        fast.write(1, chunk)
        lines -= count


# ---------------------------------------------------------------- as it grows


def follow(job: str, path: str, last: int | None) -> int:
    """Copy the log as it grows, through all attempts, until the job is final and all of it is printed."""
    ended = threading.Event()
    trouble: list[Exception] = []

    def watch() -> None:
        try:
            wait_for(job)
        except Exception as error:  # told by the thread that prints
            trouble.append(error)
        finally:
            ended.set()

    tail = Tail(path, last)
    threading.Thread(target=watch, daemon=True).start()
    while True:
        over = ended.is_set()  # asked before reading: what is read afterwards is the rest
        for chunk in tail.new(PATIENCE_S if not over else 0.0):
            fast.write(1, chunk)
        if over:
            break
        ended.wait(LOOK_AGAIN_S)
    if trouble:
        raise trouble[0]
    return 0
