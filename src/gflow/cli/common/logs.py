"""Print a job's log: all of it, its first or last lines, or as it grows.

The log is copied in chunks, because a single line may be as large as the disk.
"""

from __future__ import annotations

import json
import os
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterator
from typing import Any, BinaryIO, TypeVar

from gflow.client import hot_path, http
from gflow.client.logs import CHUNK, chunks, follow_log, start_of_last
from gflow.errors import clean_page

T = TypeVar("T")
# How lines begin that gflow writes to logs.
NOTE = b"gflow: "


def print_lines(path: str, first: int | None, last: int | None, *, is_harmless: bool = False) -> int:
    """Copy the log, or some lines of it, to standard output: unchanged, or with escapes (`is_harmless`)."""
    content = _read(path, first, last)
    for chunk in escape_controls(content) if is_harmless else content:
        hot_path.write(1, chunk)
    return 0


def print_end(place: dict[str, Any]) -> None:
    """On a terminal, say how the job ended, unless the log says it; or that nothing was written yet."""
    if not (os.isatty(1) and os.isatty(2)):
        return
    start, end = _ends_of_last_line(place["path"])
    job = place["job_id"]
    said = place.get("ended") or (
        f"has written nothing yet (gjob log -f {job} follows it)" if not end else ""
    )
    if said and start != NOTE:
        line = clean_page(f"gflow: job {job} {said}")
        hot_path.write(2, b"\n" * (end not in b"\n") + b"\x1b[2m" + line.encode() + b"\x1b[0m\n")


def _ends_of_last_line(path: str) -> tuple[bytes, bytes]:
    """The first bytes of the log's last line, and its last byte; empty if nothing was written."""
    if not os.path.exists(path):
        return b"", b""
    with open(path, "rb", buffering=0) as file:
        start, size = start_of_last(file.fileno(), 1), os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), len(NOTE), start), os.pread(file.fileno(), 1, max(0, size - 1))


def escape_controls(coming: Generator[bytes, None, T]) -> Generator[bytes, None, T]:
    """Replace every unprintable character but newlines and tabs by an escape.

    For another user's log on a terminal: its control sequences could rewrite the screen, or worse.
    """
    decoder = getincrementaldecoder("utf-8")("backslashreplace")  # a character may span two chunks
    while True:
        try:
            chunk = next(coming)
        except StopIteration as end:
            yield clean_page(decoder.decode(b"", final=True)).encode()
            final: T = end.value
            return final
        yield clean_page(decoder.decode(chunk)).encode()


def as_json(place: dict[str, Any], first: int | None, last: int | None) -> int:
    """Print the log, or some lines of it, as one JSON object; invalid UTF-8 is replaced."""
    path = place["path"]
    size = os.path.getsize(path) if os.path.exists(path) else 0
    content = b"".join(_read(path, first, last)).decode(errors="replace")
    view = {"job_id": place["job_id"], "path": path, "size": size, "content": content}
    hot_path.write(1, http.json_line(json.dumps(view).encode()))
    return 0


def _read(path: str, first: int | None, last: int | None) -> Generator[bytes, None, None]:
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
    job: str,
    path: str,
    last: int | None = None,
    between: Callable[[], None] = lambda: None,
    *,
    is_harmless: bool = False,
) -> dict[str, Any]:
    """Copy the log as it grows, until the job is final; return the final job."""
    coming = follow_log(job, path, last, between)
    if is_harmless:
        coming = escape_controls(coming)
    while True:
        try:
            hot_path.write(1, next(coming))
        except StopIteration as end:
            final: dict[str, Any] = end.value
            return final
