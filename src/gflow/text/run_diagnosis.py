"""The page of `gjob why` for a running job: verdict, findings with figures, advice and experiment."""

from __future__ import annotations

from typing import Any

from gflow.diagnosis.slow_runs.run_verdict import RunDiagnosis, RunFinding
from gflow.text.diagnosis import SURE, WIDTH, wrap


def run_page(job: dict[str, Any], found: RunDiagnosis, width: int = WIDTH) -> str:
    """The page as text, at most `width` columns wide."""
    lines = wrap(
        f"Job {job['id']} ({job['name']}) is running: {found.verdict.value}: {found.summary}.", width, "  "
    )
    if found.figures:
        lines += wrap(f"Now: {'; '.join(found.figures)}.", width, "  ")
    for place, one in enumerate(found.findings):
        lines += _finding_lines(one, is_first=not place, width=width)
    if found.ask_again_s is not None:
        lines.append(f"Ask again in {found.ask_again_s:.0f} s: gjob why {job['id']}")
    lines += [part for note in found.notes for part in wrap(f"({note})", width, " ")]
    return "\n".join(lines) + "\n"


def _finding_lines(one: RunFinding, *, is_first: bool, width: int) -> list[str]:
    """A finding in full; of a further one, its cause and figures."""
    head = ("Cause: " if is_first else "Also found: ") + SURE[one.confidence]
    lines = wrap(head + one.summary, width, "  ")
    for figure in one.figures:
        lines += wrap(f"  {figure}", width, "    ")
    if not is_first:
        return lines
    if one.frame:
        place = f"  most often at {one.frame.file}:{one.frame.line} in {one.frame.function}"
        lines += wrap(place + (f": {one.frame.code[:120]}" if one.frame.code else ""), width, "    ")
    lines.append("What to do:")
    lines += [part for line in one.advice for part in wrap(f"  - {line}", width, "    ")]
    return [*lines, *wrap(f"To confirm: {one.experiment}.", width, "  ")]
