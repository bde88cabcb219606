"""What gctl says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gflow.core.model import Job
from gflow.text.gpus import NONE, drained_note


def allowed_line(allowed: Sequence[int] | None) -> str:
    if allowed is None:
        return "New jobs may get every GPU.\n"
    if not allowed:
        return "New jobs get no GPU.\n"
    return (
        f"New jobs may get GPU {','.join(map(str, sorted(set(allowed))))} only; running jobs keep theirs.\n"
    )


def show_gpus(lines: Sequence[Mapping[str, Any]], drained: str | None) -> str:
    """One line for each GPU: index, status, notes, with tabs between, for people and for `cut`."""
    text = "".join(
        f"{line['index']}\t{line['status']}\t{'; '.join(line['notes'])}".rstrip() + "\n" for line in lines
    )
    return (text or NONE) + drained_note(drained)


def drain_line(gpus: Sequence[int] | None, reason: str, *, on: bool) -> str:
    why = f" ({reason})" if reason else ""
    if gpus is None:
        return f"Nothing more starts{why}; running jobs go on.\n" if on else "Jobs start again.\n"
    names = ",".join(map(str, gpus))
    verb = "get" if len(gpus) > 1 else "gets"
    return f"GPU {names} {verb} no new jobs{why}.\n" if on else f"GPU {names} {verb} jobs again.\n"


def limit_line(jobs: Sequence[Job], limit: int) -> str:
    what = f"of array {jobs[0].label}'s tasks" if jobs[0].is_array else f"of these {len(jobs)} jobs"
    return f"At most {limit} {what} may run at once.\n" if limit else f"Any number {what} may run at once.\n"
