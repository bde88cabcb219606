"""Find the causes of a job's end in its record and the end of its log. Pure: files are read by the caller."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from gflow.diagnosis.log_text import Frame, LogText, Traceback
from gflow.diagnosis.rules import RULES
from gflow.diagnosis.rules.record import EXIT_CODES, RECORD, SIGNALS, Row
from gflow.diagnosis.rules.rule import Confidence, Depth, Rule

# Lines that a rule is tried on, from the end of the log; findings in an answer; last lines shown.
TRIED = 8
MOST = 4
LAST_LINES = 10
# An error this many lines before the end counts less: the program went on after it.
NEAR_END = 400
_OPTIONAL = re.compile(r"\[([^\[\]]*\{\w+\}[^\[\]]*)\]")
_SIZE = re.compile(r"([\d.]+) ([KMGT])i?B")
_UNALLOCATED = re.compile(
    r"([\d.]+ [KMGT]i?B) (?:is reserved by PyTorch but unallocated|cached)"
    r"|; ([\d.]+ [KMGT]i?B) reserved in total"
)
_ALLOCATED = re.compile(r"([\d.]+ [KMGT]i?B) (?:is allocated by PyTorch|already allocated)")

# The text of an exception that only reports another failure.
_REPORT = re.compile(
    r"(?i)\b(?:errors?|causes?|tracebacks?|logs?|output|messages?|exceptions?) above|see above"
)


class Evidence(NamedTuple):
    """A line of the log, its number in the text that was read (from 0), and the rank that wrote it."""

    line: int
    text: str
    rank: int | None = None


class Finding(NamedTuple):
    """A cause, with what it rests on and what to do."""

    cause: str
    summary: str
    advice: tuple[str, ...]
    confidence: Confidence
    depth: Depth
    evidence: Evidence | None = None
    # The innermost line of the user's own code, if a Python traceback leads to it.
    frame: Frame | None = None


class JobFacts(NamedTuple):
    """What the record of a job says about its end."""

    job: str = "ID"
    state: str = "Failed"
    # The code of the reason, as in `OutOfMemory`, and its explanation.
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None


class Diagnosis(NamedTuple):
    """Findings, the most probable first, and the last lines of the log."""

    findings: tuple[Finding, ...]
    last_lines: tuple[str, ...]


def diagnose(facts: JobFacts, content: str) -> Diagnosis:
    """Rank the causes of the job's end. `content`: the end of its log."""
    log = LogText(content)
    found = [*_find_in_record(facts), *_find_in_log(facts, log)]
    found += _find_exceptions(log, found)
    if not found:
        found += _find_by_exit_code(facts)
    ranked = sorted(found, key=lambda one: _weight(one, log), reverse=True)
    return Diagnosis(tuple(_first_of_each_cause(ranked))[:MOST], tuple(log.raw[-LAST_LINES:]))


def _weight(one: Finding, log: LogText) -> tuple[int, int, tuple[int, int, int]]:
    """Findings of the record first, then roots before consequences, sure ones before others."""
    if one.evidence is None:
        return (int(one.depth) + 1, int(one.confidence), (0, 0, 0))
    is_near = one.evidence.line >= len(log.lines) - NEAR_END
    return (int(one.depth) if is_near else 0, int(one.confidence), _recency(one, log))


def _recency(one: Finding, log: LogText) -> tuple[int, int, int]:
    """Later lines first; between ranks, and in a chain of exceptions, the one that failed first."""
    assert one.evidence is not None
    line = one.evidence.line
    ranks = {log.rank_of(trace.last) for trace in log.tracebacks}
    if len(ranks - {None}) > 1:
        return (-line, 0, 0)
    trace, chain = log.traceback_of(line), log.chain_of(line)
    return (chain.last, -trace.first, line) if trace and chain else (line, 0, 0)


def _first_of_each_cause(ranked: list[Finding]) -> Iterator[Finding]:
    seen = set[str]()
    for one in ranked:
        if one.cause not in seen:
            seen.add(one.cause)
            yield one


def _find_in_log(facts: JobFacts, log: LogText) -> list[Finding]:
    found: dict[int, Finding] = {}
    for rule in RULES:
        for number, match in _matches(rule, log):
            one = _make_finding(rule, facts, log, number, match)
            kept = found.get(number)
            if kept is None or (one.depth, one.confidence) > (kept.depth, kept.confidence):
                found[number] = one
    return list(found.values())


def _matches(rule: Rule, log: LogText) -> Iterator[tuple[int, re.Match[str] | None]]:
    numbers = {number for literal in rule.find for number in log.find(literal, TRIED)}
    for number in sorted(numbers):
        if not rule.pattern:
            yield number, None
        elif match := _compile(rule.pattern).search(log.lines[number][:4000]):
            yield number, match


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _make_finding(
    rule: Rule, facts: JobFacts, log: LogText, number: int, match: re.Match[str] | None
) -> Finding:
    groups = {name: text for name, text in (match.groupdict() if match else {}).items() if text}
    names = {name.rstrip("0123456789"): text.strip() for name, text in groups.items()} | {"job": facts.job}
    summary = _fill(rule.summary, names)
    advice = [_fill(line, names) for line in rule.advice]
    if rule.cause == "cuda-oom":
        advice = [*_fragmentation_advice(log.lines[number]), *advice]
    trace = log.traceback_of(number)
    evidence = Evidence(number, log.raw[number].strip()[:500], log.rank_of(number))
    return Finding(
        rule.cause,
        summary,
        tuple(advice),
        min(rule.confidence, Confidence.POSSIBLE) if log.is_harmless(number) else rule.confidence,
        rule.depth,
        evidence,
        trace.frame if trace else None,
    )


def _fill(text: str, names: Mapping[str, str]) -> str:
    """Put the groups into the text. A part in brackets is left out if its group is missing."""

    def keep(found: re.Match[str]) -> str:
        wanted = re.findall(r"\{(\w+)\}", found[1])
        return found[1] if all(name in names for name in wanted) else ""

    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "it"), _OPTIONAL.sub(keep, text))


def _fragmentation_advice(line: str) -> list[str]:
    """What to do if much memory is reserved and not in use: the free part is in pieces."""
    unused, tried = _unused_mib(line), _SIZE.search(line)
    if tried is None or unused < _mib(tried[0]):
        return []
    return [
        f"{unused / 1024:.1f} GiB of PyTorch's memory is reserved and not in use (fragmentation): "
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    ]


def _unused_mib(line: str) -> float:
    found = _UNALLOCATED.search(line)
    if found is None:
        return 0.0
    if found[1]:
        return _mib(found[1])
    allocated = _ALLOCATED.search(line)
    return _mib(found[2]) - _mib(allocated[1]) if allocated else 0.0


def _mib(size: str) -> float:
    found = _SIZE.search(size)
    return float(found[1]) * 1024 ** ("KMGT".index(found[2]) - 1) if found else 0.0


def _find_exceptions(log: LogText, known: list[Finding]) -> list[Finding]:
    """The exception of the last traceback that reports no other failure, if no rule found it."""
    lines = {one.evidence.line: one.depth for one in known if one.evidence}
    for trace in reversed(log.tracebacks):
        if lines.get(trace.last) is Depth.CONSEQUENCE:
            continue
        near = {lines.get(number, Depth.CONSEQUENCE) for number in range(trace.last, trace.last + 4)}
        return [_exception_finding(trace, log)] if near == {Depth.CONSEQUENCE} else []
    lonely = [] if known else log.find_errors(TRIED)[:1]
    return [_exception_finding(trace, log)._replace(confidence=Confidence.POSSIBLE) for trace in lonely]


def _exception_finding(trace: Traceback, log: LogText) -> Finding:
    name = trace.error.partition(":")[0].strip() or "an exception"
    text = trace.error.partition(":")[2].strip()
    return Finding(
        "exception",
        f"The program raised {name}" + (f": {text[:150]}" if text else "") + ".",
        ("the location below is the last line of your own code in the traceback",),
        Confidence.LIKELY,
        Depth.CONSEQUENCE if _REPORT.search(text) else Depth.GENERAL,
        Evidence(trace.last, log.raw[trace.last].strip()[:500], log.rank_of(trace.last)),
        trace.frame,
    )


def _find_in_record(facts: JobFacts) -> list[Finding]:
    row = RECORD.get(facts.reason)
    if row is None:
        return []
    return [_recorded(facts, row, Confidence.CERTAIN, Depth.ROOT)]


def _find_by_exit_code(facts: JobFacts) -> list[Finding]:
    """What the exit code or the signal says by itself."""
    code = facts.exit_code or 0
    # A shell adds 128 to a signal; a launcher in Python exits with its negative, which becomes 256 less.
    signal = facts.signal or (code - 128 if 128 < code < 160 else 256 - code if code > 224 else None)
    if signal in SIGNALS:
        return [_recorded(facts, SIGNALS[signal], Confidence.LIKELY, Depth.GENERAL)]
    if facts.exit_code in EXIT_CODES:
        return [_recorded(facts, EXIT_CODES[facts.exit_code], Confidence.POSSIBLE, Depth.GENERAL)]
    return []


def _recorded(facts: JobFacts, row: Row, sure: Confidence, depth: Depth) -> Finding:
    cause, summary, advice = row
    names = {"job": facts.job} | ({"detail": facts.detail} if facts.detail else {})
    return Finding(cause, _fill(summary, names), tuple(_fill(line, names) for line in advice), sure, depth)
