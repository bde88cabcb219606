"""Lines of the audit that are about many jobs: what one request did to all of them is told once.

Such a line has no key. Its detail names the jobs: `3 jobs 1-2,42_3: priority = 5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gflow.core.ids import TASK_BITS, JobKey, label, parse_label, task_of
from gflow.core.model import AuditEntry

# What people can do to the same jobs any number of times.
GROUPED = ("held", "released", "updated")
# Up to so many jobs have a line each.
FEW = 10
_FORM = re.compile(r"[0-9]+ jobs ([0-9_,-]+)(?:: (.*))?", re.DOTALL)


def told_once(lines: list[AuditEntry]) -> list[AuditEntry]:
    """The same lines, but one where more than a few say the same of different jobs."""
    alike: dict[AuditEntry, list[JobKey]] = {}
    for line in lines:
        if line.key is not None and line.what in GROUPED:
            alike.setdefault(line._replace(key=None), []).append(line.key)
    if all(len(keys) <= FEW for keys in alike.values()):
        return lines
    told: list[AuditEntry] = []
    for line in lines:
        keys = alike.get(line._replace(key=None), []) if line.key is not None else []
        if len(keys) <= FEW:
            told.append(line)
        elif line.key == keys[0]:
            detail = f"{len(keys)} jobs {_ranges(keys)}" + (f": {line.detail}" if line.detail else "")
            told.append(line._replace(key=None, detail=detail))
    return told


def spread(line: AuditEntry) -> list[AuditEntry]:
    """A line for each job that this one is about; itself if that is one or none."""
    found = _read(line)
    if found is None:
        return [line]
    spans, detail = found
    return [
        line._replace(key=JobKey(key), detail=detail)
        for first, last in spans
        for key in range(first, last + 1, _step(first))
    ]


def spread_all(lines: Iterable[tuple[int, AuditEntry]], most: int) -> list[tuple[int, AuditEntry, bool]]:
    """Numbered lines as lines of single jobs, each with whether it is the last of its number.

    Ends after the line with which there are `most`.
    """
    found: list[tuple[int, AuditEntry, bool]] = []
    for number, line in lines:
        if len(found) >= most:
            break
        each = spread(line)
        found += [(number, one, one is each[-1]) for one in each]
    return found


def of_job(line: AuditEntry, key: JobKey) -> AuditEntry | None:
    """What a line without a key says of this job; None: nothing."""
    spans, detail = _read(line) or ([], "")
    is_task = task_of(key) is not None
    if any(first <= key <= last and is_task == (task_of(first) is not None) for first, last in spans):
        return line._replace(key=key, detail=detail)
    return None


def _read(line: AuditEntry) -> tuple[list[tuple[JobKey, JobKey]], str] | None:
    """The first and last of each run of jobs, and what was done to them; None: it is no such line."""
    form = _FORM.fullmatch(line.detail) if line.key is None and line.what in GROUPED else None
    if form is None:
        return None
    ends = [part.partition("-")[::2] for part in form[1].split(",")]
    keys = [(parse_label(first), parse_label(last or first)) for first, last in ends]
    return [(first, last) for first, last in keys if first and last], form[2] or ""


def _ranges(keys: Iterable[JobKey]) -> str:
    """Keys as text, neighbours together."""
    spans: list[list[JobKey]] = []
    for key in sorted(keys):
        last = spans[-1][-1] if spans else None
        if last is not None and _step(last) == _step(key) == key - last:
            spans[-1] = [spans[-1][0], key]
        else:
            spans.append([key])
    return ",".join("-".join(map(label, span)) for span in spans)


def _step(key: JobKey) -> int:
    """How far it is to the next job, or to the next task of an array."""
    return 1 << TASK_BITS if task_of(key) is None else 1
