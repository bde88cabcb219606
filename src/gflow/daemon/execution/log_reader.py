"""Reads parts of a job's log, which is opened with the rights of the job's owner (`FileOpener`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gflow.errors import Refused
from gflow.targets.file_rights import FileOpener


class Piece(NamedTuple):
    """A part of a log: offsets of its first byte and after its last, size of the whole log, text."""

    start: int
    end: int
    size: int
    text: str
    # The number of its first line, from 1; None: not counted.
    line: int | None = None


EMPTY = Piece(0, 0, 0, "", 1)
# Bytes that are read and looked at in one step.
PART = 1 << 20


def read_piece(path: str, offset: int, most: int, files: FileOpener, counts_to: int = 0) -> Piece:
    """At most `most` bytes from `offset` on; below 0: from the end. Bytes that are not UTF-8 are replaced.

    Characters are not cut: the piece begins and ends between two. `files` opens the log. `counts_to`: the
    number of the piece's first line is counted if it begins at most this many bytes into the log. Raises
    Refused if the file is not a log.
    """
    with open_log(path, files) as fd:
        if fd is None:
            return EMPTY
        size = os.fstat(fd).st_size
        start = max(0, size + offset) if offset < 0 else min(offset, size)
        piece = _piece(os.pread(fd, most, start), start, size)
        return piece._replace(line=_count_lines(fd, piece.start) + 1) if piece.start <= counts_to else piece


@contextmanager
def open_log(path: str, files: FileOpener) -> Iterator[int | None]:
    """Open a log for reading; None: there is no such file."""
    try:
        fd = files.open_log(path)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise Refused(f"the log {path!a:.200} cannot be read: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _count_lines(fd: int, end: int) -> int:
    """The number of line ends before this byte. In parts: a long one would keep other threads waiting."""
    return sum(os.pread(fd, min(PART, end - at), at).count(b"\n") for at in range(0, end, PART))


def _piece(content: bytes, start: int, size: int) -> Piece:
    """Cut incomplete characters at both ends: the rest of the last one may not be written yet."""
    skipped = 0
    if start:
        while skipped < min(3, len(content)) and content[skipped] & 0xC0 == 0x80:
            skipped += 1
    kept = content[skipped:]
    incomplete = _incomplete_tail(kept)
    if incomplete < len(kept):
        kept = kept[: len(kept) - incomplete]
    return Piece(start + skipped, start + skipped + len(kept), size, kept.decode(errors="replace"))


def _incomplete_tail(content: bytes) -> int:
    """The number of bytes at the end that begin a UTF-8 character without completing it."""
    for back in range(1, min(3, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if needed > back else 0
    return 0
