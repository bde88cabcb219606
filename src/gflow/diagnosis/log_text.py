"""The end of a log as lines: without terminal sequences and prefixes of ranks, with its tracebacks."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

# Terminal sequences: CSI, OSC, and two-character ones.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# What launchers put before a line: `[rank0]: `, `[default3]:[rank3]: `, `[1,3]<stderr>:`, `3: `, or a pid.
_PREFIX = re.compile(
    r"(?:\[(?:default|rank|trainer|Rank |worker)?\d+\](?:<std\w+>)?:\s?|\[\d+,\d+\]<std\w+>: ?(?=\S| {2})"
    r"|\(\w[\w.]* pid=\d+[^)]*\)\s|\d{1,3}: (?=\S|\s{2}))+"
)
_RANK = re.compile(r"\[(?:rank|default|Rank )(\d+)\]|^(\d{1,3}): |local_rank: (\d+)|\brank[ :=]+(\d+)")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
# Parts of paths of code that the user did not write.
_FOREIGN = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen", "/lib64/python3")
# Between two tracebacks: the first one is the cause of the second one.
_CHAINS = ("The above exception was the direct cause", "During handling of the above exception")
TRACEBACK = "Traceback (most recent call last)"
# The last line of a traceback: the type of an exception, mostly with a text.
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Timeout)\b(?::|$)")
# Levels of a log line that report no failure. NCCL calls its errors WARN.
_HARMLESS = re.compile(r"\b(?:INFO|DEBUG|\w*Warning|WARNING)\b|^W\d{4} |: W (?:tensorflow|external)/")


class Frame(NamedTuple):
    """A line of a program in a traceback."""

    file: str
    line: int
    function: str
    code: str


class Traceback(NamedTuple):
    """A Python traceback: its first and last line, its exception, the innermost frame of the user's code."""

    first: int
    last: int
    error: str
    frame: Frame | None


class LogText:
    """Lines of a log, with the position of each."""

    def __init__(self, content: str) -> None:
        plain = _ESCAPES.sub("", content) if "\x1b" in content else content
        # A progress bar overwrites its line: a reader sees the text after the last carriage return.
        lines = [line.rsplit("\r", 1)[-1] for line in plain.replace("\r\n", "\n").split("\n")]
        if lines and not lines[-1]:
            lines.pop()
        self.raw = lines
        self.lines = [_PREFIX.sub("", line, count=1) if _PREFIX.match(line) else line for line in lines]
        self.text = "\n".join(self.lines)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.tracebacks = self._find_tracebacks()

    def find(self, literal: str, limit: int) -> list[int]:
        """Numbers of the lines that contain the literal, at most `limit` from the end."""
        found: list[int] = []
        end = len(self.text)
        while len(found) < limit and (place := self.text.rfind(literal, 0, end)) >= 0:
            number = bisect_right(self._starts, place) - 1
            found.append(number)
            end = self._starts[number]
        return found

    def traceback_of(self, number: int) -> Traceback | None:
        """The traceback to whose error the line belongs."""
        for one in self.tracebacks:
            if one.first <= number <= one.last + 3:
                return one
        return None

    def find_errors(self, limit: int) -> list[Traceback]:
        """Lines that name an exception, without a traceback before them."""
        numbers = self.find("Error: ", limit)
        lines = [(number, self.lines[number].strip()) for number in numbers]
        return [Traceback(number, number, line, None) for number, line in lines if _ERROR.match(line)]

    def chain_of(self, number: int) -> Traceback | None:
        """The last traceback of the chain of exceptions to which the line belongs."""
        last = None
        for one in self.tracebacks:
            if last is not None and self._is_chained(last, one):
                last = one
            elif last is not None:
                break
            elif one.first <= number <= one.last + 3:
                last = one
        return last

    def _is_chained(self, one: Traceback, following: Traceback) -> bool:
        between = self.lines[max(one.last + 1, following.first - 3) : following.first]
        return any(line.strip().startswith(_CHAINS) for line in between)

    def rank_of(self, number: int) -> int | None:
        """The rank that wrote the line, if a prefix or the line says so."""
        found = _RANK.search(self.raw[number])
        return int(next(group for group in found.groups() if group)) if found else None

    def is_harmless(self, number: int) -> bool:
        """Whether the line calls itself information or a warning."""
        line = self.lines[number]
        return "NCCL WARN" not in line and bool(_HARMLESS.search(line[:300]))

    def _find_tracebacks(self) -> list[Traceback]:
        found = [self._read_traceback(first) for first in reversed(self.find(TRACEBACK, 64))]
        known = {number for one in found for number in range(one.first, one.last + 1)}
        return sorted([*found, *self._find_cut_off(known)])

    def _find_cut_off(self, known: set[int]) -> Iterator[Traceback]:
        """Tracebacks without their first line: the log was cut off before it, or ranks wrote at once."""
        frames = self.find('  File "', 64)
        for frame in frames:
            if frame in known:
                continue
            last = next(
                (
                    n
                    for n in range(frame + 1, min(frame + 12, len(self.lines)))
                    if _ERROR.match(self.lines[n].strip())
                ),
                None,
            )
            if last is not None and last not in known:
                known.add(last)
                yield self._read_traceback(frame - 1)._replace(first=frame)

    def _read_traceback(self, first: int) -> Traceback:
        frame, last = None, first
        head = self.lines[first] if first >= 0 else ""
        is_whole = TRACEBACK in head
        below = self.lines[first + 1] if first + 1 < len(self.lines) else ""
        indent = max(0, len(below) - len(below.lstrip()) - 2) if '  File "' in below else 0
        indent = min(indent, len(head) - len(head.lstrip())) if is_whole else indent
        for number in range(first + 1, min(first + 400, len(self.lines))):
            line = self.lines[number][indent:]
            if found := _FRAME.match(line):
                if not any(part in found["file"] for part in _FOREIGN):
                    code = self.lines[number + 1].strip() if number + 1 < len(self.lines) else ""
                    frame = Frame(found["file"], int(found["line"]), found["function"] or "", code)
            elif line[:1].strip():
                return Traceback(first, number, line.strip(), frame)
            last = number
        return Traceback(first, last, "", frame)
