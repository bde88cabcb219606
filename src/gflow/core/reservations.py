"""GPUs that somebody has for themselves for a while.

While a reservation lasts, nobody else's job starts on its GPUs; and before it begins, none that would
run into it: by its time limit, or, where it has none, by how long it is expected to take. What runs
is never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gflow.core.model import Job
from gflow.errors import Refused

# How many that are over are remembered.
REMEMBERED = 200


class Reservation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some GPUs for one person, from `start` until `end` (wall clock)."""

    id: int
    user: str
    gpus: tuple[int, ...]
    start: float
    end: float
    created_at: float
    cancelled_at: float | None = None

    def status(self, wall: float) -> str:
        if self.cancelled_at is not None:
            return "cancelled"
        return "pending" if wall < self.start else "active" if wall < self.end else "completed"

    def is_over(self, wall: float) -> bool:
        return self.cancelled_at is not None or wall >= self.end


class Book:
    """All reservations, by id."""

    def __init__(self) -> None:
        self.all: dict[int, Reservation] = {}
        # Those that are not over.
        self.live: list[Reservation] = []

    def record(self) -> str:
        return msgspec.json.encode(list(self.all.values())).decode()

    def recall(self, text: str) -> None:
        found = msgspec.json.decode(text, type=list[Reservation])
        self.all = {one.id: one for one in found}
        self.live = [one for one in found if one.cancelled_at is None]

    def put(self, one: Reservation, wall: float) -> None:
        """A new one, or one that changed."""
        self.all[one.id] = one
        over = sorted(key for key, other in self.all.items() if other.is_over(wall))
        for key in over[:-REMEMBERED]:
            del self.all[key]
        self.live = [other for other in self.all.values() if not other.is_over(wall)]

    def pass_time(self, wall: float) -> bool:
        """Forget those that are over by now; whether there were any."""
        if all(wall < one.end for one in self.live):
            return False
        self.live = [one for one in self.live if wall < one.end]
        return True

    @property
    def next_end(self) -> float | None:
        return min((one.end for one in self.live), default=None)

    def barred(self, user: str, wall: float, length: float) -> frozenset[int]:
        """GPUs on which nothing of this person may start now that takes so long."""
        if not self.live:
            return frozenset()
        found = (
            one for one in self.live if one.user != user and one.end > wall and one.start < wall + length
        )
        return frozenset(gpu for one in found for gpu in one.gpus)

    def between(self, start: float, end: float) -> Iterator[Reservation]:
        """Those that overlap this time."""
        return (one for one in self.live if one.start < end and start < one.end)


def chosen(
    book: Book, known: Iterable[int], wanted: tuple[int, ...], count: int, span: tuple[float, float]
) -> tuple[int, ...]:
    """The GPUs of a new reservation: those wanted, or so many that nobody else has reserved then."""
    known, taken = sorted(known), {gpu: one for one in book.between(*span) for gpu in one.gpus}
    for gpu in wanted:
        if gpu not in known:
            raise Refused(f"there is no GPU {gpu} here", hint="see what there is with ginfo")
        if gpu in taken:
            raise Refused(
                f"GPU {gpu} is reserved for {taken[gpu].user} then", hint="gctl reserve list --timeline"
            )
    if wanted:
        return tuple(sorted(set(wanted)))
    # From the end: jobs take the first ones first.
    free = [gpu for gpu in reversed(known) if gpu not in taken]
    if len(free) < count:
        only = f"only {len(free)} of the {len(known)} GPUs" if free else "no GPU"
        raise Refused(f"{only} can be reserved then", hint="gctl reserve list --timeline")
    return tuple(sorted(free[:count]))


def span_of(job: Job, expected_s: float) -> float:
    """How long a job may be in a reservation's way: its limit is certain, the rest is expectation."""
    return float(job.spec.time_limit_s or expected_s)
