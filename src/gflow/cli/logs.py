"""Reading a job's log: all of it, an end of it, or as it grows.

Everything goes through in chunks: a line may be as long as the disk is large.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from gflow.client import fast
from gflow.client.logs import CHUNK, Tail, chunks, start_of_last
from gflow.client.waiting import wait_for

LOOK_AGAIN_S = 0.05
# A log that is shorter than it was, and nothing tells where the rest went, is read anew after this long.
PATIENCE_S = 1.0


def print_lines(path: str, first: int | None, last: int | None) -> int:
    """Copy the log, or some lines of it, to standard output, byte for byte."""
    for chunk in _wanted(path, first, last):
        fast.write(1, chunk)
    return 0


def as_json(place: dict[str, Any], first: int | None, last: int | None) -> int:
    """The log, or some lines of it, as one object; what is no UTF-8 is replaced."""
    path = place["path"]
    size = os.path.getsize(path) if os.path.exists(path) else 0
    content = b"".join(_wanted(path, first, last)).decode(errors="replace")
    view = {"job_id": place["job_id"], "path": path, "size": size, "content": content}
    fast.write(1, json.dumps(view).encode() + b"\n")
    return 0


def _wanted(path: str, first: int | None, last: int | None) -> Iterator[bytes]:
    """The log, or some lines of it."""
    if not os.path.exists(path):
        return  # nothing was written yet
    with open(path, "rb", buffering=0) as file:
        if first is not None:
            yield from _first(file, first)
        else:
            yield from chunks(file, 0 if last is None else start_of_last(file.fileno(), last))


def _first(file: BinaryIO, lines: int) -> Iterator[bytes]:
    while lines and (chunk := file.read(CHUNK)):
        count = chunk.count(b"\n")
        if count >= lines:
            parts = chunk.split(b"\n", lines)
            chunk, count = b"\n".join(parts[:lines]) + b"\n", lines
        yield chunk
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
