"""Who has waited longest: the first few in order, as every round looks at them, and the rest as a heap."""

from __future__ import annotations

import heapq
from bisect import insort
from typing import TYPE_CHECKING

from gflow.core.ids import JobKey

if TYPE_CHECKING:
    from gflow.core.lanes import Group

# Since when a group's first job waits, that job, the stamp, the group. No two have one stamp, so that groups
# themselves are never compared; and it is true only while it is the group's own stamp (see `Group.aged`).
Age = tuple[float, JobKey, int, "Group"]


class Ages:
    """Of one kind of jobs. Those that are not true any more are dropped when somebody comes across them."""

    __slots__ = ("_first", "_rest")

    def __init__(self) -> None:
        # Whoever is in `_first` has waited longer than all in `_rest`.
        self._first: list[Age] = []
        self._rest: list[Age] = []

    def __len__(self) -> int:
        """How many there are, true or not."""
        return len(self._first) + len(self._rest)

    def add(self, age: Age) -> None:
        if self._first and age < self._first[-1]:
            insort(self._first, age)
        else:
            heapq.heappush(self._rest, age)

    def at(self, place: int) -> Age | None:
        """Who has waited longest but so many; None: there are not as many."""
        first, rest = self._first, self._rest
        while True:
            if place < len(first):
                age = first[place]
                if age[3].aged == age[2]:
                    return age
                del first[place]
            elif rest:
                first.append(heapq.heappop(rest))
            else:
                return None

    def tidy(self) -> None:
        """Drop all that are not true any more."""
        self._rest = sorted(age for age in self._first + self._rest if age[3].aged == age[2])
        self._first = []
