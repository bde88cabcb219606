"""The page of `gjob why` for an ended job: cause, evidence, advice; else the last lines of the log."""

from __future__ import annotations

from typing import Any

from gflow.diagnosis.finding import Diagnosis, Evidence, Finding
from gflow.diagnosis.rules.rule import Confidence

WIDTH = 80
SURE = {Confidence.CERTAIN: "", Confidence.LIKELY: "probably: ", Confidence.POSSIBLE: "possibly: "}
LONGEST = 300
# Failed tasks of an array that are named.
MOST_TASKS = 10


def diagnosis_page(
    job: dict[str, Any], found: Diagnosis, first_line: int | None, missing: str, width: int = WIDTH
) -> str:
    """The page as text, at most `width` columns wide."""
    lines = [_end_line(job)]
    if missing:
        lines.append(f"({missing})")
    for place, one in enumerate(found.findings):
        lines += _finding_lines(one, is_first=not place, first_line=first_line, width=width)
    if not found.findings and job["state"] == "Finished":
        return "\n".join([*lines, "There is nothing to explain: it finished without an error."]) + "\n"
    if not found.findings:
        lines.append("No known cause was found.")
    if found.last_lines and not any(one.is_from_log for one in found.findings):
        lines.append("The last lines of its log:")
        lines += [f"  {line[: width - 2]}" for line in found.last_lines]
    return "\n".join(lines) + "\n"


def array_page(job: dict[str, Any], failed: list[dict[str, Any]], width: int = WIDTH) -> str:
    """The page of an ended array: how many tasks ended how, and those that failed."""
    counts = [(job["tasks"][name], name) for name in ("finished", "failed", "cancelled")]
    words = ", ".join(f"{count} {name}" for count, name in counts if count) or "none ran"
    lines = [_end_line(job), f"Its tasks: {words}."]
    if failed:
        names = [f"{one['id']} ({one['reason'] or one['state']})" for one in failed]
        more = f" and {len(names) - MOST_TASKS} more" if len(names) > MOST_TASKS else ""
        lines += wrap(f"Failed: {', '.join(names[:MOST_TASKS])}{more}.", width, "  ")
        lines.append(f"The cause of one: gjob why {failed[0]['id']}")
    elif counts[0][0] and not counts[2][0]:
        lines.append("There is nothing to explain: all tasks finished without an error.")
    return "\n".join(lines) + "\n"


def _end_line(job: dict[str, Any]) -> str:
    reason = f": {job['reason']}" if job["reason"] else ""
    return f"Job {job['id']} ({job['name']}) has ended: {job['state']}{reason}."


def _finding_lines(one: Finding, *, is_first: bool, first_line: int | None, width: int) -> list[str]:
    """A finding in full; a further one in its first lines."""
    head = ("Cause: " if is_first else "Also found: ") + SURE[one.confidence]
    lines = wrap(head + one.summary, width, "  ")
    # The first line of the page has what the record says.
    if one.evidence and one.evidence.source != "record":
        lines += _evidence_lines(one.evidence, first_line, width)
    if one.frame and is_first:
        frame = one.frame
        code = f": {frame.code[:120]}" if frame.code else ""
        lines += wrap(f"  at {frame.file}:{frame.line} in {frame.function}{code}", width, "    ")
    for fact in one.support:
        lines += _evidence_lines(fact, None, width)
    if is_first and one.advice:
        lines.append("What to do:")
        lines += [part for line in one.advice for part in wrap(f"  - {line}", width, "    ")]
    return lines


def _evidence_lines(fact: Evidence, first_line: int | None, width: int) -> list[str]:
    where = fact.source
    if fact.source == "log":
        where = f"log line {first_line + fact.line}" if first_line and fact.line is not None else "in the log"
    rank = f", rank {fact.rank}" if fact.rank is not None else ""
    return wrap(f"  {where}{rank}: {fact.text[:LONGEST]}", width, "    ")


def wrap(text: str, width: int, indent: str) -> list[str]:
    """Fold a text between words; further lines begin with `indent`. A long path stays in one piece."""
    lines, line = [], text[: len(text) - len(text.lstrip())]
    for word in text.split():
        if line.strip() and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = indent
        line += f" {word}" if line.strip() else word
    return [*lines, line]
