"""When running jobs are expected to be over, soonest first; kept up as jobs start, end and outlast it."""

from __future__ import annotations

from bisect import bisect_left, insort

from gflow.core.ids import JobKey


class Timetable:
    """Expected ends in order. A change costs O(log n) and a shift of memory."""

    def __init__(self) -> None:
        self.line: list[tuple[float, JobKey]] = []
        self._ends: dict[JobKey, float] = {}

    def put(self, key: JobKey, end: float) -> None:
        """This job is expected to be over then, whatever was expected before."""
        if self._ends.get(key) != end:
            self.remove(key)
            self._ends[key] = end
            insort(self.line, (end, key))

    def remove(self, key: JobKey) -> None:
        end = self._ends.pop(key, None)
        if end is not None:
            del self.line[bisect_left(self.line, (end, key))]
