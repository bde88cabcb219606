"""The page of `gjob why` for an ended job: cause, evidence, advice; else the last lines of the log."""

from __future__ import annotations

import textwrap
from typing import Any

from gflow.diagnosis.diagnose import Diagnosis, Finding
from gflow.diagnosis.rules.rule import Confidence

WIDTH = 80
SURE = {Confidence.CERTAIN: "", Confidence.LIKELY: "probably: ", Confidence.POSSIBLE: "possibly: "}
LONGEST = 300


def diagnosis_page(
    job: dict[str, Any], found: Diagnosis, first_line: int | None, missing: str, width: int = WIDTH
) -> str:
    """The page as text, at most `width` columns wide."""
    reason = f": {job['reason']}" if job["reason"] else ""
    lines = [f"Job {job['id']} ({job['name']}) has ended: {job['state']}{reason}."]
    if missing:
        lines.append(f"({missing})")
    for place, one in enumerate(found.findings):
        lines += _finding_lines(one, is_first=not place, first_line=first_line, width=width)
    if not found.findings:
        lines.append("No known cause was found.")
    if found.last_lines and not any(one.evidence for one in found.findings):
        lines.append("The last lines of its log:")
        lines += [f"  {line[: width - 2]}" for line in found.last_lines]
    return "\n".join(lines) + "\n"


def _finding_lines(one: Finding, *, is_first: bool, first_line: int | None, width: int) -> list[str]:
    """A finding in full; a further one in its first lines."""
    head = ("Cause: " if is_first else "Also found: ") + SURE[one.confidence]
    lines = _wrap(head + one.summary, width, "  ")
    if one.evidence:
        number = f"log line {first_line + one.evidence.line}" if first_line else "in the log"
        rank = f", rank {one.evidence.rank}" if one.evidence.rank is not None else ""
        lines += _wrap(f"  {number}{rank}: {one.evidence.text[:LONGEST]}", width, "    ")
    if one.frame and is_first:
        frame = one.frame
        lines += _wrap(
            f"  at {frame.file}:{frame.line} in {frame.function}: {frame.code[:120]}", width, "    "
        )
    if is_first:
        lines.append("What to do:")
        lines += [part for line in one.advice for part in _wrap(f"  - {line}", width, "    ")]
    return lines


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [text]
