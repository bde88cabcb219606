"""Searches in a job's log: lines that contain a text, or that look like an error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gflow.daemon.execution.log_reader import PART, open_log
from gflow.targets.file_rights import FileOpener

# A line longer than this is cut into parts for the search, and shown in part.
LONGEST_LINE = 64 << 10
SHOWN = 300
# Words of lines that report an error, in lower case, and what such a line matches.
ERROR_WORDS = (b"traceback", b"error", b"exception", b"fatal", b"panic", b"out of memory", b"oom",
               b"segmentation fault", b"killed", b"abort", b"command not found",
               b"no such file or directory")  # fmt: skip
ERROR_LINE = re.compile(
    rb"(\btraceback|error|exception|\bfatal|\bpanic(ked)?|out of memory|\boom|segmentation fault|\bkilled"
    rb"|\babort(ed)?|command not found|no such file or directory)\b"
)


class Match(NamedTuple):
    """A line that was found: its number from 1, the offset of its first byte, its text, perhaps cut."""

    line: int
    offset: int
    text: str


class Matches(NamedTuple):
    """Lines that were found, and where the search stopped: an offset and the number of the line there."""

    found: list[Match]
    end: int
    line: int
    size: int


def search(path: str, files: FileOpener, text: str, offset: int, line: int, most: int, limit: int) -> Matches:
    """Find lines that contain a text, without regard to the case of ASCII letters; empty: look like errors.

    The search begins at the line `line`, whose first byte is at `offset`, and stops after `limit` lines, or
    after about `most` bytes at the end of a line. Its cost follows `most`. `files` opens the log.
    """
    wanted = text.encode().lower()
    find = _find_text(wanted) if wanted else _find_errors
    with open_log(path, files) as fd:
        if fd is None:
            return Matches([], 0, 1, 0)
        size = os.fstat(fd).st_size
        found: list[Match] = []
        at = min(offset, size)
        stop = min(size, at + most)
        while at < stop and len(found) < limit:
            content = _whole_lines(os.pread(fd, PART, at), is_last=at + PART >= size)
            before = 0
            for place in find(content.lower()):
                line, before = line + content.count(b"\n", before, place), place
                if len(found) == limit:  # the search goes on with this line
                    return Matches(found, at + place, line, size)
                found.append(Match(line, at + place, _line_at(content, place)))
            line += content.count(b"\n", before)
            at += len(content)
        return Matches(found, at, line, size)


def _whole_lines(content: bytes, *, is_last: bool) -> bytes:
    """The content up to its last line end; all of it at the end of the log, and if no line ends in it."""
    return content if is_last else content[: content.rfind(b"\n") + 1] or content


def _find_text(wanted: bytes) -> Callable[[bytes], Iterator[int]]:
    def find(content: bytes) -> Iterator[int]:
        place = content.find(wanted)
        while place >= 0:
            yield content.rfind(b"\n", 0, place) + 1
            end = content.find(b"\n", place)
            place = content.find(wanted, end) if end >= 0 else -1

    return find


def _find_errors(content: bytes) -> Iterator[int]:
    """The beginnings of lines that look like errors. Words first: an expression takes ten times as long."""
    places = {word: content.find(word) for word in ERROR_WORDS}
    while known := [place for place in places.values() if place >= 0]:
        place = min(known)
        first, end = content.rfind(b"\n", 0, place) + 1, content.find(b"\n", place)
        end = len(content) if end < 0 else end
        if ERROR_LINE.search(content, first, min(end, first + LONGEST_LINE)):
            yield first
        places = {word: content.find(word, end) if 0 <= at < end else at for word, at in places.items()}


def _line_at(content: bytes, place: int) -> str:
    end = content.find(b"\n", place, place + SHOWN)
    return content[place : place + SHOWN if end < 0 else end].decode(errors="replace")
