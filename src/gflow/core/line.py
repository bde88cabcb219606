"""Who waits, as a story about them needs it (`core.playing`).

Only GPUs are counted (or CPU slots, for jobs that ask for no GPU). However many wait, the cost is bounded:
those who come first are taken as they are, and of the others some, who stand for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gflow.core.ids import JobKey
from gflow.core.lanes import EVERYTHING, Group
from gflow.core.model import Job
from gflow.core.needs import Shape
from gflow.core.promise import MOST_ASKED, times_of
from gflow.core.queue import Walk
from gflow.core.state import State

# How many of those who wait are taken one by one, and by at most how many the others are represented.
MOST_NEAR, MOST_FAR = 1000, 1000


class Waiting:
    """One that waits, as it stands now. Nothing here changes: a thread may go by it."""

    __slots__ = (
        "bound", "count", "due", "expected", "group", "guess", "key", "limit", "place", "quiet_due",
        "since", "size", "standing",
    )  # fmt: skip

    def __init__(self, key: JobKey, group: Group, size: int, count: int, dues: tuple[float, float]) -> None:
        asked = group.key
        self.key = key
        self.group = group
        self.size = size
        # For how many it stands: what they take is one after the other.
        self.count = count
        self.place = (group.lane.place, group.rank, key)
        self.standing = group.standing
        self.since = group.members[key]
        self.limit = asked.limit_s
        self.expected = group.length
        # What the scheduler knows of it: see `Group`.
        self.bound, self.guess = group.bound, group.guess
        # After which wait it is promised its start, and after which if most stands idle.
        self.due, self.quiet_due = dues


def line(state: State, with_gpus: bool, also: Job | None = None) -> list[Waiting]:
    """Those who wait for GPUs, or for none: nobody twice, and `also` in any case."""
    total = len(state.machine.usable) if with_gpus else state.machine.cpus
    dues: dict[Group, tuple[float, float]] = {}
    found = []
    for key, group, count in _all(state, with_gpus, also):
        size = size_of(group.key.shape, with_gpus)
        if 0 < size <= total:
            if group not in dues:
                often, rarely = (times_of(state, group.key.shape, is_quiet) for is_quiet in (False, True))
                dues[group] = group.counted * often, group.counted * rarely
            found.append(Waiting(key, group, size, count, dues[group]))
    return found


def _all(state: State, with_gpus: bool, also: Job | None) -> Iterator[tuple[JobKey, Group, int]]:
    """Each with for how many it stands."""
    seen: set[JobKey] = set()
    for key, group in _near(state, with_gpus, also):
        if key not in seen:
            seen.add(key)
            yield key, group, 1
    groups = [group for group in state.ready.groups.values() if with_gpus == (group.key.shape.gpus > 0)]
    each = 1 + (sum(len(group.members) for group in groups) - len(seen)) // MOST_FAR
    first = 0
    for group in groups:
        for key in islice(group.members, first, None, each):
            if key not in seen:
                yield key, group, each
        first = (first - len(group.members)) % each


def _near(state: State, with_gpus: bool, also: Job | None) -> Iterator[tuple[JobKey, Group]]:
    """Who is asked about, the first in order, and those who have waited longest; some of them twice."""
    if also is not None:
        yield also.key, state.ready.group_of(also)
    walk, told = Walk(state.ready), 0
    while told < MOST_NEAR and (key := walk.next(EVERYTHING)) is not None:
        job = state.jobs[key]
        group = state.ready.group_of(job)
        walk.skip(job)
        if with_gpus == (group.key.shape.gpus > 0):
            for member in islice(group.members, MOST_NEAR - told):
                told += 1
                yield member, group
    walk.close()
    for (_, gpus), ages in state.ready.ages.items():
        if gpus == with_gpus:
            for place in range(MOST_ASKED):
                age = ages.at(place)
                if age is None:
                    break
                yield age[1], age[3]


def size_of(shape: Shape, with_gpus: bool) -> int:
    return shape.gpus if with_gpus else shape.cpus
