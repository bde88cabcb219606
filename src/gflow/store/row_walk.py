"""A walk over the listed jobs by id that gives one row for each group, array and other job.

Its cost follows the jobs of the rows that it gives: the tasks of an array are skipped, those of other groups
are read, and each page goes on where the one before stopped.
"""

from __future__ import annotations

from typing import NamedTuple

from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.queries.job_filter import Filter
from gflow.errors import UsageError
from gflow.store.group_figures import GROUP, RANGE
from gflow.store.reader import Reader

# Jobs that one query reads, and most that are read for one page.
TOGETHER = 500
MOST_READ = 20_000


class ListedRow:
    """Listed jobs of one row: the first and last that the walk met. `group`: see `Spec.group`; 0: none."""

    def __init__(self, group: int, first: int) -> None:
        self.group = group
        self.first = self.last = first
        self.count = 0

    def add(self, key: int) -> None:
        self.last = key
        self.count += 1


class Place(NamedTuple):
    """Where a walk goes on: after the job with this key, without the groups that have a row already."""

    key: int
    groups: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Place:
        numbers = text.split(".")
        if not all(part.isdecimal() and part.isascii() and len(part) <= 18 for part in numbers):
            raise UsageError(f"after={text!a:.60} is not where a listing stopped", hint="see `next`")
        return cls(int(numbers[0]), tuple(map(int, numbers[1:])))

    def __str__(self) -> str:
        return ".".join(map(str, (self.key, *self.groups)))


def walk_rows(
    reader: Reader, wanted: Filter, place: Place | None, limit: int, *, newest: bool
) -> tuple[list[ListedRow], Place | None]:
    """At most `limit` rows after `place`, and where the next page begins; None: there is none."""
    rows: dict[int, ListedRow] = {}
    # Groups that have a row on an earlier page, with the number of their last job so far.
    earlier = dict.fromkeys(place.groups, number_of(JobKey(place.key))) if place else {}
    after, read = (place.key if place else None), 0
    while read < MOST_READ:
        found = reader.keys_and(GROUP, wanted, after, TOGETHER, newest=newest)
        for key, group in found:
            number = number_of(JobKey(key))
            row = group if group and group > 0 else number
            if row in earlier:
                earlier[row] = number
            elif row not in rows and len(rows) == limit:
                return list(rows.values()), _place(after, rows, earlier, newest=newest)
            else:
                rows.setdefault(row, ListedRow(group or 0, key)).add(key)
            after = key
        if len(found) < TOGETHER:
            return list(rows.values()), None
        read += len(found)
        after = _past_array(found[-1][0], newest=newest)
    return list(rows.values()), _place(after, rows, earlier, newest=newest)


def _past_array(key: int, *, newest: bool) -> int:
    """The key after which the tasks of an array are over; the key itself if it is no task."""
    number = number_of(JobKey(key))
    if task_of(JobKey(key)) is None:
        return key
    return job_key(number) + 1 if newest else job_key(number + 1) - 1


def _place(after: int | None, rows: dict[int, ListedRow], earlier: dict[int, int], *, newest: bool) -> Place:
    """The place after this key, with the groups that may go on there."""
    assert after is not None
    here = number_of(JobKey(after))
    lasts = {row: number_of(JobKey(one.last)) for row, one in rows.items() if one.group > 0} | earlier
    goes_on = [row for row, last in lasts.items() if (row < here if newest else last > here - RANGE)]
    for row in goes_on:
        if row in rows:  # more of its jobs may follow: it is shown as a group
            rows[row].count = max(rows[row].count, 2)
    return Place(after, tuple(goes_on))
