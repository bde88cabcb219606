"""Parser of job selectors: `17`, `1,3,5-7`, `42_3`, `42_[1-5]`, `@`, `@~2`, `g116` (a group)."""

from __future__ import annotations

import re
from typing import NamedTuple

from gflow.core.task_set import TaskSet, parse_tasks
from gflow.errors import UsageError
from gflow.options.values import read
from gflow.wire.requests import OPTIONS

# Most jobs that one request may name. They are looked up in one go, and other requests wait meanwhile.
MOST = 10_000
# Most jobs in ranges where the lookup is done in slices: as many as a submission holds.
MOST_IN_RANGES = 100_000
# Unambiguous, so that matching is linear: with alternatives the regex would backtrack on a long text.
_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)?(?:,|$)")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_GROUP = re.compile(r"g(\d{1,12})", re.ASCII)
_TASKS = re.compile(r"(\d{1,12})_\[([^\[\]]*)\]", re.ASCII)


class Numbers(NamedTuple):
    """A range of job numbers, both ends included."""

    first: int
    last: int


class Tasks(NamedTuple):
    """Some tasks of an array."""

    number: int
    tasks: TaskSet


class Group(NamedTuple):
    """All jobs of a group, by its number."""

    number: int


def parse_selectors(texts: list[str]) -> list[str | Numbers | Tasks | Group]:
    """Parse comma-separated selectors. A comma in brackets does not separate."""
    parts = [part.strip().removesuffix(",").strip() for part in _split(",".join(texts))]
    found, named = [], 0
    for part in filter(None, parts):
        found.append(_parse_part(part))
        named += len(found[-1].tasks) if isinstance(found[-1], Tasks) else 1
        check_number(named)
    return found


def check_number(named: int, most: int = MOST) -> None:
    """Refuse a request that names more than `most` jobs."""
    if named > most:
        raise UsageError(f"more than {most:,} jobs are named at once", hint="name fewer jobs")


def _split(text: str) -> list[str]:
    parts, at = [], 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None or found.end() == at:
            raise UsageError(f"{text!a:.60} does not name jobs", hint="write 1,3,5-7 or 42_3 or 42_[1-5]")
        parts.append(found[0])
        at = found.end()
    return parts


def _parse_part(part: str) -> str | Numbers | Tasks | Group:
    if found := _GROUP.fullmatch(part):
        return Group(int(found[1]))
    if found := _RANGE.fullmatch(part):
        first, last = int(found[1]), int(found[2])
        if last < first:
            raise UsageError(f"the range {part} has no jobs", hint=f"write {last}-{first}")
        return Numbers(first, last)
    if found := _TASKS.fullmatch(part):
        tasks = parse_tasks(read(OPTIONS["array"], found[2]).partition("%")[0])
        return Tasks(int(found[1]), tasks)
    return part
