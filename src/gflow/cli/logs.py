"""Reading a job's log: all of it, an end of it, or as it grows.

Everything goes through in chunks: a line may be as long as the disk is large.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from gflow.client import fast
from gflow.client.logs import CHUNK, chunks, followed, start_of_last


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


def follow(
    job: str, path: str, last: int | None = None, between: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Copy the log as it grows, until the job is final and all of it is printed; how it ended."""
    coming = followed(job, path, last, between)
    while True:
        try:
            fast.write(1, next(coming))
        except StopIteration as end:
            final: dict[str, Any] = end.value
            return final
