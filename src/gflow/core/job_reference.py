"""Resolve job references: `17`, `42_3`, `@` (the latest job of the user), `@~2` (two before it), `@~2_3`."""

from __future__ import annotations

import re

from gflow.core.ids import JobKey, number_of, parse_label
from gflow.core.state.job_tables import RECENT
from gflow.core.state.state import State
from gflow.errors import Hint, Refused, UsageError, no_job

# A job number, or an array number with a task, of any length.
_NUMBERS = re.compile(r"[0-9]+(_[0-9]+)?")
# The latest job of the user, or one before it, with a task.
_LATEST = re.compile(r"@(?:~([0-9]{1,18}))?(_[0-9]+)?")
NOT_AN_ID = Hint("job_ids", "jobs are named 42, 42_3, 5-9, g42 (a group) or @")


def resolve(state: State, uid: int, reference: str) -> JobKey:
    """Return the key of the job that `reference` names for the user `uid`.

    A malformed reference is a usage error. A well-formed one that names no job raises NotFound or Refused.
    """
    if reference.startswith("@"):
        back, task = _parse_offset(reference)
        recent = state.jobs.recent.get(uid, ())
        if back >= len(recent):
            why = (
                f"@ reaches back {RECENT} jobs"
                if len(recent) == RECENT
                else f"you have submitted {len(recent)}"
            )
            raise Refused(f"{reference} means none of your jobs: {why}")
        found = parse_label(f"{number_of(recent[-1 - back])}{task}")
        if found is None:
            raise no_job(f"{reference:.60}")
        return found
    key = parse_label(reference)
    if key is not None:
        return key
    if _NUMBERS.fullmatch(reference):  # larger than any key
        raise no_job(f"{reference:.60}")
    raise UsageError(f"{reference!a:.60} is not a job id", hint=NOT_AN_ID)


def _parse_offset(reference: str) -> tuple[int, str]:
    """Parse `@` or `@~N`: how many jobs before the latest one; and the task after it: `_3`, or nothing."""
    found = _LATEST.fullmatch(reference)
    if found is None:
        hint = "write @ for your latest job, @~1 for the one before it, @~1_3 for task 3 of that"
        raise UsageError(f"{reference!a:.60} is not a job id", hint=hint)
    return int(found[1] or 0), found[2] or ""
