"""Grouped entries of the audit log: one entry for what one request did to many jobs.

A grouped entry has no key. Its detail names the jobs: `3 jobs 1-2,42_3: priority = 5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gflow.core.ids import TASK_BITS, JobKey, label, parse_label, task_of
from gflow.core.model import AuditEntry

# Actions that are grouped: a user can repeat them on the same jobs any number of times.
GROUPED = ("held", "released", "updated")
# Up to this many jobs get an entry each.
FEW = 10
_FORM = re.compile(r"[0-9]+ jobs ([0-9_,-]+)(?:: (.*))?", re.DOTALL)


def group_entries(entries: list[AuditEntry]) -> list[AuditEntry]:
    """Group equal entries of more than FEW jobs; all other entries are unchanged."""
    grouped: dict[AuditEntry, list[JobKey]] = {}
    for entry in entries:
        if entry.key is not None and entry.what in GROUPED:
            grouped.setdefault(entry._replace(key=None), []).append(entry.key)
    if all(len(keys) <= FEW for keys in grouped.values()):
        return entries
    found: list[AuditEntry] = []
    for entry in entries:
        keys = grouped.get(entry._replace(key=None), []) if entry.key is not None else []
        if len(keys) <= FEW:
            found.append(entry)
        elif entry.key == keys[0]:
            detail = f"{len(keys)} jobs {_ranges(keys)}" + (f": {entry.detail}" if entry.detail else "")
            found.append(entry._replace(key=None, detail=detail))
    return found


def spread(entry: AuditEntry) -> list[AuditEntry]:
    """One entry for each job of a grouped entry; any other entry itself."""
    found = _read(entry)
    if found is None:
        return [entry]
    spans, detail = found
    return [
        entry._replace(key=JobKey(key), detail=detail)
        for first, last in spans
        for key in range(first, last + 1, _step(first))
    ]


def spread_all(entries: Iterable[tuple[int, AuditEntry]], most: int) -> list[tuple[int, AuditEntry, bool]]:
    """Numbered entries, grouped ones split by job, each with whether it is the last of its number.

    Stops after the entry that makes them `most` or more.
    """
    found: list[tuple[int, AuditEntry, bool]] = []
    for number, entry in entries:
        if len(found) >= most:
            break
        each = spread(entry)
        found += [(number, one, one is each[-1]) for one in each]
    return found


def of_job(entry: AuditEntry, key: JobKey) -> AuditEntry | None:
    """The part of a grouped entry that is about this job; None: it is not about this job."""
    spans, detail = _read(entry) or ([], "")
    is_task = task_of(key) is not None
    if any(first <= key <= last and is_task == (task_of(first) is not None) for first, last in spans):
        return entry._replace(key=key, detail=detail)
    return None


def _read(entry: AuditEntry) -> tuple[list[tuple[JobKey, JobKey]], str] | None:
    """First and last key of each range of jobs, and what was done to them; None: not a grouped entry."""
    form = _FORM.fullmatch(entry.detail) if entry.key is None and entry.what in GROUPED else None
    if form is None:
        return None
    ends = [part.partition("-")[::2] for part in form[1].split(",")]
    keys = [(parse_label(first), parse_label(last or first)) for first, last in ends]
    return [(first, last) for first, last in keys if first and last], form[2] or ""


def _ranges(keys: Iterable[JobKey]) -> str:
    """Keys as text, neighbours as ranges."""
    spans: list[list[JobKey]] = []
    for key in sorted(keys):
        last = spans[-1][-1] if spans else None
        if last is not None and _step(last) == _step(key) == key - last:
            spans[-1] = [spans[-1][0], key]
        else:
            spans.append([key])
    return ",".join("-".join(map(label, span)) for span in spans)


def _step(key: JobKey) -> int:
    """The distance of keys from a job to the next one, or from a task to the next one."""
    return 1 << TASK_BITS if task_of(key) is None else 1
