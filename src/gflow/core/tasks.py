"""Sets of array tasks, kept as ranges: `1-10`, `0-90:10`, `1,3,5-7`.

A hundred thousand waiting tasks are one range. Immutable; every operation is O(ranges).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import msgspec


class Span(NamedTuple):
    """Tasks first, first+step, …, last. `last` is a member."""

    first: int
    last: int
    step: int = 1

    def __contains__(self, task: object) -> bool:
        return (
            isinstance(task, int) and self.first <= task <= self.last and not (task - self.first) % self.step
        )

    @property
    def size(self) -> int:
        return (self.last - self.first) // self.step + 1

    def __str__(self) -> str:
        if self.first == self.last:
            return str(self.first)
        step = f":{self.step}" if self.step != 1 else ""
        return f"{self.first}-{self.last}{step}"


class TaskSet(msgspec.Struct, frozen=True, gc=False):
    """Spans in ascending order of their first task; they may interleave, and share none."""

    spans: tuple[Span, ...] = ()

    def __len__(self) -> int:
        return sum(span.size for span in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __contains__(self, task: int) -> bool:
        return any(task in span for span in self.spans)

    def __iter__(self) -> Iterator[int]:
        return heapq.merge(*(range(span.first, span.last + 1, span.step) for span in self.spans))

    def __str__(self) -> str:
        return ",".join(map(str, self.spans))

    @property
    def first(self) -> int:
        return self.spans[0].first

    def without(self, task: int) -> TaskSet:
        """This set less one task."""
        kept: list[Span] = []
        for span in self.spans:
            if task not in span:
                kept.append(span)
                continue
            if task > span.first:
                kept.append(_span(span.first, task - span.step, span.step))
            if task < span.last:
                kept.append(_span(task + span.step, span.last, span.step))
        return TaskSet(tuple(sorted(kept)))


def _span(first: int, last: int, step: int) -> Span:
    return Span(first, last, 1 if first == last else step)


def parse_tasks(text: str) -> TaskSet:
    """The set that `str()` wrote."""
    spans = []
    for part in filter(None, text.split(",")):
        ends, _, step = part.partition(":")
        first, dash, last = ends.partition("-")
        spans.append(_span(int(first), int(last) if dash else int(first), int(step or 1)))
    return TaskSet(tuple(spans))
