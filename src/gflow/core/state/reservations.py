"""GPU reservations: GPUs kept for one user from a start time to an end time. Made by operators.

While a reservation is active, no job of another user starts on its GPUs. Before it begins, no job of another
user starts there that could still hold them when it begins. Only a job's hard end counts for that, which is
its time limit plus its grace time. A runtime estimate does not count, and a job without a limit has no hard
end. When the reservation begins, its GPUs are freed (`core.scheduling.eviction`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Literal

import msgspec

from gflow.core.model import Job, Moment, Spec
from gflow.core.resources import INFINITE
from gflow.errors import Hint, Refused, no_gpu

# How many ended or cancelled reservations are kept.
REMEMBERED = 200
Status = Literal["pending", "active", "completed", "cancelled"]
SHOW_TIMELINE = Hint("show_timeline", "see the reservations")
NO_GPUS: frozenset[int] = frozenset()


class Reservation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some GPUs for one user, from `start` to `end` (wall clock)."""

    id: int
    user: str
    gpus: tuple[int, ...]
    start: float
    end: float
    created_at: float
    cancelled_at: float | None = None

    def status(self, wall: float) -> Status:
        if self.cancelled_at is not None:
            return "cancelled"
        return "pending" if wall < self.start else "active" if wall < self.end else "completed"

    def is_over(self, wall: float) -> bool:
        return self.cancelled_at is not None or wall >= self.end


class ReservationTable:
    """All reservations, by id."""

    def __init__(self) -> None:
        self.all: dict[int, Reservation] = {}
        # Reservations that have not ended, and those of them that have begun, as of `pass_time`.
        self.live: list[Reservation] = []
        self.active: list[Reservation] = []
        # The wall time at which the next one begins or ends.
        self.next_change: float | None = None

    def record(self) -> str:
        return msgspec.json.encode(list(self.all.values())).decode()

    def load(self, text: str) -> None:
        found = msgspec.json.decode(text, type=list[Reservation])
        self.all = {one.id: one for one in found}
        self._sort([one for one in found if one.cancelled_at is None], [])

    def put(self, one: Reservation, wall: float) -> None:
        """Add or replace a reservation."""
        self.all[one.id] = one
        over = sorted(key for key, other in self.all.items() if other.is_over(wall))
        for key in over[:-REMEMBERED]:
            del self.all[key]
        self.live = list(self.all.values())
        self.pass_time(wall)

    def pass_time(self, wall: float) -> bool:
        """Bring `live` and `active` up to date; whether a reservation has begun or ended since."""
        before = self.active
        live = [one for one in self.live if not one.is_over(wall)]
        self._sort(live, [one for one in live if one.start <= wall])
        return before != self.active

    def _sort(self, live: list[Reservation], active: list[Reservation]) -> None:
        self.live, self.active = live, active
        changes = [one.end for one in active] + [one.start for one in live if one not in active]
        self.next_change = min(changes, default=None)

    def barred(self, job: Job, wall: float) -> frozenset[int]:
        """GPUs that are reserved for other users before the hard end of this job, if it started now."""
        if not self.live:
            return NO_GPUS
        end = wall + hard_s(job.spec)
        return frozenset(gpu for one in self.against(job.user, wall, end) for gpu in one.gpus)

    def against(self, user: str, start: float, end: float) -> Iterator[Reservation]:
        """Reservations of other users that overlap this span of time."""
        return (one for one in self.between(start, end) if one.user != user)

    def between(self, start: float, end: float) -> Iterator[Reservation]:
        """Reservations that overlap this span of time."""
        return (one for one in self.live if one.start < end and start < one.end)


def choose_gpus(
    table: ReservationTable,
    known: Iterable[int],
    wanted: tuple[int, ...],
    count: int,
    span: tuple[float, float],
    held: Set[int] = NO_GPUS,
    besides: int = 0,
) -> tuple[int, ...]:
    """The GPUs of a new reservation: the wanted ones, or `count` that are not reserved in this span.

    `held`: GPUs that jobs of other users may still hold when it begins; they are the last choice.
    `besides`: the id of a reservation that is changed, whose GPUs count as free.
    """
    others = (one for one in table.between(*span) if one.id != besides)
    known, taken = sorted(known), {gpu: one for one in others for gpu in one.gpus}
    for gpu in wanted:
        if gpu not in known:
            raise no_gpu(gpu)
        if gpu in taken:
            raise Refused(f"GPU {gpu} is reserved for {taken[gpu].user} then", hint=SHOW_TIMELINE)
    if wanted:
        return tuple(sorted(set(wanted)))
    # Highest index first: jobs take the lowest first.
    free = sorted((gpu for gpu in known if gpu not in taken), key=lambda gpu: (gpu in held, -gpu))
    if len(free) < count:
        only = f"only {len(free)} of the {len(known)} GPUs" if free else "no GPU"
        raise Refused(f"{only} can be reserved then", hint=SHOW_TIMELINE)
    return tuple(sorted(free[:count]))


def hard_s(spec: Spec) -> float:
    """The longest time an attempt can hold its GPUs: time limit plus grace time; infinite without a limit."""
    return float(spec.time_limit_s + spec.grace_s) if spec.time_limit_s else INFINITE


def hard_end(job: Job, spec: Spec, at: Moment) -> float:
    """The wall time by which a running job with this spec has released its GPUs."""
    assert job.started_boot is not None
    return at.wall + (job.started_boot - at.boot) + hard_s(spec)


def spell_reserved(gpus: Iterable[int], owners: Iterable[str], is_private: bool) -> str:
    """Say for whom these GPUs are reserved."""
    return f"GPU {','.join(map(str, gpus))} reserved for {spell_owners(owners, is_private)}"


def spell_owners(owners: Iterable[str], is_private: bool) -> str:
    """The names of these users, unless the policy hides them."""
    return "another user" if is_private else ", ".join(owners)
