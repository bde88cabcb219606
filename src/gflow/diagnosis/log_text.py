"""The end of a log as lines: without terminal sequences and prefixes of ranks, with its tracebacks."""

# Annotations are not postponed: as texts they double the time to define a NamedTuple.
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile, islice, takewhile
from typing import NamedTuple

# Regular expressions. Each is compiled when it is first used: most logs need few of them.
# Terminal sequences: CSI, OSC, and two-character ones.
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
# What launchers put before a line: `[rank0]: `, `[default3]:[rank3]: `, `[1,3]<stderr>:`, `3: `, or a pid.
# gflow launch puts `  [2] ` there.
_PREFIX = (
    r"(?:  \[\d+\] )?"
    r"(?:\[(?:default|rank|trainer|Rank |worker)?\d+\](?:<std\w+>)?:\s?|\[\d+,\d+\]<std\w+>: ?(?=\S| {2})"
    r"|\(\w[\w.]* pid=\d+[^)]*\)\s|\d{1,3}: (?=\S|\s{2}))+|  \[\d+\] "
)
_RANK = r"^  \[(\d+)\] |\[(?:rank|default|Rank )(\d+)\]|^(\d{1,3}): |local_rank: (\d+)|\brank[ :=]+(\d+)"
# How launchers name the rank that failed first: gflow launch, and below its headline torchrun.
_BLAMED = r"^gflow launch: rank (\d+) (?:was|exited)"
_TORCHRUN = "Root Cause (first observed failure):"
_TORCHRUN_RANK = r"\s*rank\s*: (\d+)"
_FRAME = r'  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?'
# A frame of faulthandler, which prints the innermost one first.
_DUMPED = r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)'
# Parts of paths of code that the user did not write.
_FOREIGN = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen", "/lib64/python3")
# Between two tracebacks: the first one is the cause of the second one.
_CHAINS = ("The above exception was the direct cause", "During handling of the above exception")
TRACEBACK = "Traceback (most recent call last)"
# The last line of a traceback: the type of an exception, mostly with a text.
_ERROR = r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Timeout)\b(?::|$)"
# Levels of a log line that report no failure. NCCL calls its errors WARN.
_HARMLESS = r"\b(?:INFO|DEBUG|\w*Warning|WARNING)\b|^W\d{4} |: W (?:tensorflow|external)/"
# Characters with which a prefix begins.
_PREFIX_STARTS = frozenset("[( 0123456789")
# Lines that differ in their digits only are of one kind; so many of a kind are searched, from the end.
OF_A_KIND = 64
_DIGITS = dict.fromkeys(map(ord, "0123456789"))


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
        plain = re.sub(_ESCAPES, "", content) if "\x1b" in content else content
        # A progress bar overwrites its line: a reader sees the text after the last carriage return.
        lines = plain.replace("\r\n", "\n").split("\n")
        if "\r" in plain:
            lines = [line.rsplit("\r", 1)[-1] for line in lines]
        if lines and not lines[-1]:
            lines.pop()
        self.raw = lines
        self.lines = [_drop_prefix(line) if line[:1] in _PREFIX_STARTS else line for line in lines]
        # The lines that are searched, as one text, with the number and the place of each.
        self._numbers = _pick_lines(self.lines)
        self.text = "\n".join(self.lines[number] for number in self._numbers)
        # The different words of the text: most literals are in none of them, and this is a short text.
        self._words = "\n".join(set(self.text.split()))
        self._starts = [0]
        for number in self._numbers:
            self._starts.append(self._starts[-1] + len(self.lines[number]) + 1)
        self.tracebacks = self._find_tracebacks()
        # The rank that failed first, if a launcher names it.
        self.first_failed = self._find_first_failed()

    def _find_first_failed(self) -> int | None:
        for number in self.find("gflow launch: rank ", 1):
            if found := re.match(_BLAMED, self.lines[number]):
                return int(found[1])
        for number in self.find(_TORCHRUN, 1):
            below = self.lines[number + 1 : number + 6]
            return next((int(found[1]) for line in below if (found := re.match(_TORCHRUN_RANK, line))), None)
        return None

    def find(self, literal: str, limit: int) -> list[int]:
        """Numbers of the lines that contain the literal, at most `limit` from the end."""
        if _longest_word(literal) not in self._words:
            return []
        found: list[int] = []
        end = len(self.text)
        while len(found) < limit and (place := self.text.rfind(literal, 0, end)) >= 0:
            at = bisect_right(self._starts, place) - 1
            found.append(self._numbers[at])
            end = self._starts[at]
        return found

    def traceback_of(self, number: int) -> Traceback | None:
        """The traceback to whose error the line belongs."""
        for one in self.tracebacks:
            if one.first <= number <= one.last + 3:
                return one
        return None

    def dumped_frame(self, number: int) -> Frame | None:
        """The innermost line of the user's own code in the stack of faulthandler below this line."""
        if not self.lines[number].startswith("Fatal Python error"):
            return None
        below = self.lines[number + 1 : number + 400]
        own = dropwhile(lambda line: not line.startswith("Current thread"), below)
        found = takewhile(bool, (re.match(_DUMPED, line) for line in islice(own, 1, None)))
        for one in filter(None, found):
            if not any(part in one["file"] for part in _FOREIGN):
                return Frame(one["file"], int(one["line"]), one["function"], "")
        return None

    def find_errors(self, limit: int) -> list[Traceback]:
        """Lines that name an exception, without a traceback before them."""
        numbers = self.find("Error: ", limit)
        lines = [(number, self.lines[number].strip()) for number in numbers]
        return [Traceback(number, number, line, None) for number, line in lines if re.match(_ERROR, line)]

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
        found = re.search(_RANK, self.raw[number])
        return int(next(group for group in found.groups() if group)) if found else None

    def is_harmless(self, number: int) -> bool:
        """Whether the line calls itself information or a warning."""
        line = self.lines[number]
        return "NCCL WARN" not in line and bool(re.search(_HARMLESS, line[:300]))

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
                    if re.match(_ERROR, self.lines[n].strip())
                ),
                None,
            )
            if last is not None and last not in known:
                known.add(last)
                yield self._read_traceback(frame - 1)._replace(first=frame)

    def _code_below(self, number: int, indent: int) -> str:
        """The line of the program below a frame; empty if the traceback has none, as for `python -c`."""
        below = self.lines[number + 1][indent:] if number + 1 < len(self.lines) else ""
        return below.strip() if below.startswith("    ") else ""

    def _read_traceback(self, first: int) -> Traceback:
        frame, last = None, first
        head = self.lines[first] if first >= 0 else ""
        is_whole = TRACEBACK in head
        below = self.lines[first + 1] if first + 1 < len(self.lines) else ""
        indent = max(0, len(below) - len(below.lstrip()) - 2) if '  File "' in below else 0
        indent = min(indent, len(head) - len(head.lstrip())) if is_whole else indent
        for number in range(first + 1, min(first + 400, len(self.lines))):
            line = self.lines[number][indent:]
            if found := re.match(_FRAME, line):
                if not any(part in found["file"] for part in _FOREIGN):
                    code = self._code_below(number, indent)
                    frame = Frame(found["file"], int(found["line"]), found["function"] or "", code)
            elif line[:1].strip():
                return Traceback(first, number, line.strip(), frame)
            last = number
        return Traceback(first, last, "", frame)


@cache
def _longest_word(literal: str) -> str:
    """The longest word of a literal, which is part of a word of each text that contains the literal."""
    return max(literal.split(), key=len)


def _drop_prefix(line: str) -> str:
    found = re.match(_PREFIX, line)
    return line[found.end() :] if found else line


def _pick_lines(lines: list[str]) -> list[int]:
    """Numbers of the lines to search, in order: of each kind the last ones.

    Most lines of a long log report progress. Without their repetitions the search takes a tenth of the time.
    """
    kinds = "\n".join(lines).translate(_DIGITS).split("\n")
    counts: dict[str, int] = {}
    picked = []
    for number in range(len(lines) - 1, -1, -1):
        count = counts[kinds[number]] = counts.get(kinds[number], 0) + 1
        if count <= OF_A_KIND:
            picked.append(number)
    return picked[::-1]
