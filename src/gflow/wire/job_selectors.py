"""Which jobs people mean: `17`, `1,3,5-7`, `42_3`, `42_[1-5]`, `@`, `@~2`."""

from __future__ import annotations

import re
from typing import NamedTuple

from gflow.core.task_set import TaskSet, parse_tasks
from gflow.errors import UsageError
from gflow.options.values import read
from gflow.wire.requests import OPTIONS

# What one request may name: nobody means more, and everybody else waits meanwhile.
MOST = 10_000
# What ranges may mean where it is done in parts: as many as a submission may hold.
MOST_IN_RANGES = 100_000
# Each character has one place to go: with two, a long text would be tried in every way.
_PART = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)?(?:,|$)")
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_TASKS = re.compile(r"(\d{1,12})_\[([^\[\]]*)\]", re.ASCII)


class Numbers(NamedTuple):
    """Jobs from one number to another, both included."""

    first: int
    last: int


class Tasks(NamedTuple):
    """Some tasks of an array."""

    number: int
    tasks: TaskSet


def selected(texts: list[str]) -> list[str | Numbers | Tasks]:
    """What each part of these texts names. A comma separates, except in brackets."""
    parts = [part.strip().removesuffix(",").strip() for part in _split(",".join(texts))]
    found, named = [], 0
    for part in filter(None, parts):
        found.append(_meant(part))
        named += len(found[-1].tasks) if isinstance(found[-1], Tasks) else 1
        check_number(named)
    return found


def check_number(named: int, most: int = MOST) -> None:
    """Refuse to look up more jobs than anybody means."""
    if named > most:
        raise UsageError(f"more than {most:,} jobs are named at once", hint="name fewer of them")


def _split(text: str) -> list[str]:
    parts, at = [], 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None or found.end() == at:
            raise UsageError(f"{text!a:.60} does not name jobs", hint="write 1,3,5-7 or 42_3 or 42_[1-5]")
        parts.append(found[0])
        at = found.end()
    return parts


def _meant(part: str) -> str | Numbers | Tasks:
    if found := _RANGE.fullmatch(part):
        first, last = int(found[1]), int(found[2])
        if last < first:
            raise UsageError(f"the range {part} has no jobs", hint=f"write {last}-{first}")
        return Numbers(first, last)
    if found := _TASKS.fullmatch(part):
        tasks = parse_tasks(read(OPTIONS["array"], found[2]).partition("%")[0])
        return Tasks(int(found[1]), tasks)
    return part
