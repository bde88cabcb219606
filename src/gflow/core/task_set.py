"""Sets of array tasks, stored as ranges: `1-10`, `0-90:10`, `1,3,5-7`.

A hundred thousand waiting tasks are one range. Sets are immutable, so they are shared.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple


class Span(NamedTuple):
    """The tasks first, first+step, …, last, inclusive."""

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


# Spans in ascending order, each of which ends before the next begins.
Track = tuple[Span, ...]


class TaskSet:
    """A set of tasks as disjoint spans.

    Spans that interleave (`0-98:2,1-99:2`) are in different tracks, so that a task is found by bisection in
    each track. Removing a task never adds a track.
    """

    __slots__ = ("_tracks",)

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._tracks = _tracks(spans)

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans, in ascending order of their first tasks."""
        return self._tracks[0] if len(self._tracks) == 1 else tuple(sorted(chain(*self._tracks)))

    def __len__(self) -> int:
        return sum(span.size for track in self._tracks for span in track)

    def __bool__(self) -> bool:
        return bool(self._tracks)

    def __contains__(self, task: int) -> bool:
        for track in self._tracks:  # noqa: SIM110 - twice as fast; called for ten thousand parents in one turn
            if _find(track, task) is not None:
                return True
        return False

    def __iter__(self) -> Iterator[int]:
        return heapq.merge(*(chain(*map(_tasks, track)) for track in self._tracks))

    def __str__(self) -> str:
        return ",".join(map(str, self.spans))

    def __repr__(self) -> str:
        return f"TaskSet({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.spans == other.spans if isinstance(other, TaskSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.spans)

    @property
    def first(self) -> int:
        return min(track[0].first for track in self._tracks)

    @property
    def last(self) -> int:
        return max(track[-1].last for track in self._tracks)

    def between(self, first: int, last: int) -> TaskSet:
        """The tasks from `first` to `last`, inclusive."""
        clipped = (_clip(span, first, last) for track in self._tracks for span in track)
        return TaskSet(span for span in clipped if span is not None)

    def shifted(self, by: int) -> TaskSet:
        """The set with `by` added to each task."""
        return TaskSet(Span(span.first + by, span.last + by, span.step) for span in self.spans)

    def without(self, task: int) -> TaskSet:
        """Return this set without one task."""
        for number, track in enumerate(self._tracks):
            at = _find(track, task)
            if at is not None:
                rest = track[:at] + _halves(track[at], task) + track[at + 1 :]
                smaller = TaskSet()
                smaller._tracks = (
                    self._tracks[:number] + ((rest,) if rest else ()) + self._tracks[number + 1 :]
                )
                return smaller
        return self


def _tracks(spans: Iterable[Span]) -> tuple[Track, ...]:
    """Distribute spans over the fewest tracks: each into the track that ended first, if any. O(n log n)."""
    tracks: list[list[Span]] = []
    ends: list[tuple[int, int]] = []  # heap of (last task, track)
    for span in sorted(spans):
        if ends and ends[0][0] < span.first:
            number = ends[0][1]
            heapq.heapreplace(ends, (span.last, number))
        else:
            number = len(tracks)
            tracks.append([])
            heapq.heappush(ends, (span.last, number))
        tracks[number].append(span)
    return tuple(map(tuple, tracks))


def _find(track: Track, task: int) -> int | None:
    """Index of the span with this task in its track; None if there is none. O(log spans)."""
    at = bisect_right(track, task, key=_first) - 1
    return at if at >= 0 and task in track[at] else None


def _first(span: Span) -> int:
    return span.first


def _tasks(span: Span) -> range:
    return range(span.first, span.last + 1, span.step)


def _halves(span: Span, task: int) -> Track:
    """The parts of a span before and after one of its tasks."""
    before = (_span(span.first, task - span.step, span.step),) if task > span.first else ()
    after = (_span(task + span.step, span.last, span.step),) if task < span.last else ()
    return before + after


def _clip(span: Span, first: int, last: int) -> Span | None:
    """The tasks of a span from `first` to `last`; None: there are none."""
    begin = span.first + max(0, -(-(first - span.first) // span.step)) * span.step
    end = span.last - max(0, -(-(span.last - last) // span.step)) * span.step
    return _span(begin, end, span.step) if begin <= end else None


def _span(first: int, last: int, step: int) -> Span:
    return Span(first, last, 1 if first == last else step)


def parse_tasks(text: str) -> TaskSet:
    """Parse the format that `str()` writes."""
    spans = []
    for part in filter(None, text.split(",")):
        ends, _, step = part.partition(":")
        first, dash, last = ends.partition("-")
        spans.append(_span(int(first), int(last) if dash else int(first), int(step or 1)))
    return TaskSet(spans)
