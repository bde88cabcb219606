"""Find the causes of a job's end in its record, its log and its circumstances. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from gflow.diagnosis.circumstances import (
    NOTHING,
    Circumstances,
    add_support,
    attempts_fact,
    find_in_circumstances,
)
from gflow.diagnosis.finding import Diagnosis, Evidence, Finding, JobFacts
from gflow.diagnosis.log_text import LogText, Traceback
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
# The text of an exception that only reports another failure.
_REPORT = re.compile(
    r"(?i)\b(?:errors?|causes?|tracebacks?|logs?|output|messages?|exceptions?) above|see above"
)


def diagnose(facts: JobFacts, content: str, around: Circumstances = NOTHING) -> Diagnosis:
    """Rank the causes of the job's end. `content`: the end of its log. `around`: what else is known."""
    log = LogText(content)
    found = [*_find_in_record(facts), *_find_in_log(facts, log, around)]
    found += _find_exceptions(log, found)
    if not found:
        found += _find_by_exit_code(facts)
    if facts.state != "Finished":
        found += [_name_job(one, facts) for one in find_in_circumstances(around, found)]
    ranked = sorted(found, key=lambda one: _weight(one, log), reverse=True)
    findings = [add_support(one, around) for one in _first_of_each_cause(ranked)][:MOST]
    if findings:
        findings[0] = findings[0]._replace(support=(*findings[0].support, *attempts_fact(around)))
    return Diagnosis(tuple(findings), tuple(log.raw[-LAST_LINES:]))


def _name_job(one: Finding, facts: JobFacts) -> Finding:
    return one._replace(advice=tuple(_fill(line, {"job": facts.job}) for line in one.advice))


def _weight(one: Finding, log: LogText) -> tuple[int, int, tuple[int, int, int]]:
    """Findings of the record first, then roots before consequences, sure ones before others."""
    if not one.is_from_log or one.evidence is None or one.evidence.line is None:
        return (int(one.depth) + (one.confidence is Confidence.CERTAIN), int(one.confidence), (0, 0, 0))
    line = one.evidence.line
    is_near = line >= len(log.lines) - NEAR_END
    return (int(one.depth) if is_near else 0, int(one.confidence), _recency(line, log))


def _recency(line: int, log: LogText) -> tuple[int, int, int]:
    """The rank that failed first, then later lines; in a chain of exceptions the first one.

    Without a launcher that says which rank failed first, the first of several ranks counts.
    """
    if log.first_failed is not None:
        return (log.rank_of(line) == log.first_failed, line, 0)
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


def _find_in_log(facts: JobFacts, log: LogText, around: Circumstances) -> list[Finding]:
    found: dict[int, Finding] = {}
    for rule in RULES:
        for number, match in _matches(rule, log):
            one = _make_finding(rule, facts, log, number, match)
            if rule.cause == "cuda-oom":
                one = _add_figures(one, log, number, around)
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
    if not facts.has_gpus:
        names["cpu_job"] = facts.job
    summary = _fill(rule.summary, names)
    advice = filter(None, (_fill(line, names) for line in rule.advice))
    trace = log.traceback_of(number)
    evidence = Evidence(number, log.raw[number].strip()[:500], log.rank_of(number))
    return Finding(
        rule.cause,
        summary,
        tuple(advice),
        min(rule.confidence, Confidence.POSSIBLE) if log.is_harmless(number) else rule.confidence,
        rule.depth,
        evidence,
        trace.frame if trace else log.dumped_frame(number),
    )


def _add_figures(one: Finding, log: LogText, number: int, around: Circumstances) -> Finding:
    """The finding with the figures of its line, and with the advice that follows from them."""
    from gflow.diagnosis.cuda_oom import about_prediction, advise, parse_cuda_oom, summarize

    oom = parse_cuda_oom(log.lines[number])
    return one._replace(
        summary=summarize(oom) or one.summary,
        advice=(*advise(oom, around, log.text), *one.advice),
        figures=oom.figures or None,
        support=tuple(about_prediction(around)),
    )


def _fill(text: str, names: Mapping[str, str]) -> str:
    """Put the groups into the text. A part in brackets is left out if its group is missing."""

    def keep(found: re.Match[str]) -> str:
        wanted = re.findall(r"\{(\w+)\}", found[1])
        return found[1] if all(name in names for name in wanted) else ""

    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "it"), _OPTIONAL.sub(keep, text))


def _find_exceptions(log: LogText, known: list[Finding]) -> list[Finding]:
    """The exception of the last traceback that reports no other failure, if no rule found it."""
    lines = {one.evidence.line: one.depth for one in known if one.evidence and one.is_from_log}
    latest = log.tracebacks[::-1]
    blamed = [
        one for one in latest if log.first_failed is not None and log.rank_of(one.last) == log.first_failed
    ]
    for trace in [*blamed, *latest]:
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
        ("look at this line of your own code, the last one in the traceback",) if trace.frame else (),
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
    lines = tuple(_fill(line, names) for line in advice)
    return Finding(cause, _fill(summary, names), lines, sure, depth, _record_evidence(facts))


def _record_evidence(facts: JobFacts) -> Evidence:
    """How the job ended, as its record says: `Timeout: TimeLimit`."""
    reason = facts.reason + (f": {facts.detail}" if facts.reason and facts.detail else "")
    code = "" if facts.exit_code is None else f"exit code {facts.exit_code}"
    told = reason or (f"signal {facts.signal}" if facts.signal else code)
    return Evidence(None, f"{facts.state}: {told}" if told else facts.state, source="record")
