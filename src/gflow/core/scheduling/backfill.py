"""Starts that are promised: nobody waits for ever, however many pass.

Once a job has waited for many times its own length, it gets the earliest start that the running jobs'
expected ends allow. Until then others may start only if they are expected to be over by then, or
take what that job will not need (EASY backfilling). Jobs of a higher priority do not care.
"""

from __future__ import annotations

from typing import Final

from gflow.core.ids import JobKey
from gflow.core.model import Job
from gflow.core.resources import INFINITE, Shape
from gflow.core.scheduling.availability import AvailabilityProfile
from gflow.core.state.queue_index import Group
from gflow.core.state.start_reservations import StartReservation
from gflow.core.state.state import NO_GPUS, State

# How many of the oldest are asked, if those before them can be promised nothing; and how many are looked at,
# if those before them wait for a quota or a cap.
MOST_ASKED: Final = 20
MOST_SEEN: Final = 500
# Who wants the whole machine waits for `policy.patience` times its length, and who wants a part of it for
# less: by this power of that part. Where so much of the machine is idle, nobody for more than once.
NARROWER: Final = 2 / 3
QUIET: Final = 2 / 3
# Guesses are of what most take; most that start take less. So whoever would pass is taken for this part of
# what is guessed, or for the part of the machine that is promised, if that is more.
CAUTION: Final = 0.5


class ProfileCache:
    """All that can be promised at one moment."""

    __slots__ = ("_is_ruled", "_now", "_prospects", "_state")

    def __init__(self, state: State, now: float) -> None:
        self._state, self._now = state, now
        self._is_ruled = state.is_ruled
        # By what jobs ask for, and the GPUs they may not have.
        self._prospects: dict[object, AvailabilityProfile] = {}

    def is_held(self, key: JobKey, group: Group) -> bool:
        """Whether a quota or a cap keeps this job of that group from starting, whatever is free."""
        if not self._is_ruled and not group.key.max_concurrent:
            return False
        job = self._state.jobs[key]
        return self._state.is_capped(job) or self._state.over_quota(job) is not None

    def promise(self, key: JobKey, group: Group) -> StartReservation | None:
        """What can be promised to this job of that group, if anything can and nothing else holds it."""
        kind: object = group.kind
        barred = NO_GPUS
        if self._is_ruled:
            barred = self._state.barred(self._state.jobs[key])
            kind = (kind, barred)
        prospect = self._prospects.get(kind)
        if prospect is None:
            prospect = self._prospects[kind] = AvailabilityProfile(
                self._state, group.shape, self._now, barred
            )
        place = prospect.first_fit(group.gpus, group.cpus, group.memory_mib)
        if place < 0:
            return None
        caution = caution_for(share_of(self._state, group.shape))
        return StartReservation(
            key, group, self._now, prospect.times[place], caution, prospect.availability(place)
        )


def caution_for(share: float) -> float:
    """Which part of what is guessed of others counts where this part of the machine is promised."""
    return share if share > CAUTION else CAUTION


def taken_for(caution: float, bound: float, guess: float) -> float:
    """How long a job is taken to be that may run so long and probably runs so long."""
    careful = caution * guess
    return careful if careful < bound else bound


def may_backfill(state: State, job: Job, gpu_ids: tuple[int, ...]) -> bool:
    """Whether a start with these GPUs keeps what is promised to others; the promised mind earlier ones."""
    promises = state.promises
    if not promises:
        return True
    ready, key, backfill = state.ready, job.key, state.policy.backfill
    group = ready.where.get(key)
    shape, standing = (job.spec.shape, job.spec.standing) if group is None else (group.shape, group.standing)
    bound, guess = ready.known_of(job)
    surely = ready.surely_s(job) if is_quiet(state) else None
    for promise in promises:
        if promise.key == key:
            return True
        length = taken_for(promise.caution, bound, guess) if surely is None else surely
        if standing <= promise.standing and not (backfill and promise.allows(shape, gpu_ids, length)):
            return False
    return True


def is_kept_for_some(state: State, gpu_ids: tuple[int, ...]) -> bool:
    """Whether somebody who is promised a start will need some of these GPUs."""
    for promise in state.promises:  # noqa: SIM110 - a loop takes half the time
        if promise.is_blocked(gpu_ids):
            return True
    return False


def due(state: State, now: float) -> list[StartReservation]:
    """Promises to those who have waited longest, if that is long enough and they can be promised anything."""
    if state.machine.is_drained:
        return []
    prospects = ProfileCache(state, now)
    found = _made_way_for(state, prospects) if state.yielding else []
    if state.policy.patience < 0:
        return found
    ages = state.ready.ages
    kinds = sorted(ages, key=_first) if len(ages) > 1 else list(ages)
    taken = frozenset([promise.key for promise in found])
    # Those with GPUs and those without have their own: else one without could wait for ever.
    left = {True: state.policy.promises, False: state.policy.promises}
    due: list[StartReservation] = []
    for kind in kinds:
        made = _to_oldest(state, prospects, kind, left[kind[1]], taken, now)
        left[kind[1]] -= len(made)
        due += made
    if len(kinds) > 1:
        due.sort(key=_place)
    return found + due


def _to_oldest(
    state: State,
    prospects: ProfileCache,
    kind: tuple[int, bool],
    most: int,
    taken: frozenset[JobKey],
    now: float,
) -> list[StartReservation]:
    """To at most so many of this kind, in order, but not to those who have one."""
    found: list[StartReservation] = []
    ages, quiet, asked = state.ready.ages[kind], is_quiet(state), 0
    for place in range(MOST_SEEN):
        age = ages.at(place)
        if age is None:
            if not place:
                del state.ready.ages[kind]
            break
        since, key, _, group = age
        if len(found) == most or asked == MOST_ASKED:
            break
        if key in taken or prospects.is_held(key, group):
            continue  # it waits for something else, and hides nobody
        if not _is_due(state, group, now - since, quiet):
            break
        asked += 1
        promise = prospects.promise(key, group)
        if promise is not None:
            found.append(promise)
    return found


def _made_way_for(state: State, prospects: ProfileCache) -> list[StartReservation]:
    """Those for whom running jobs make way: nobody else is to have what they get."""
    wait = {first for key in state.yielding.values() if (first := first_of(state, key)) is not None}
    groups = [(key, state.ready.where[key]) for key in sorted(wait)]
    made = [prospects.promise(key, group) for key, group in groups if not prospects.is_held(key, group)]
    return [promise for promise in made if promise is not None]


def first_of(state: State, key: JobKey) -> JobKey | None:
    """Who starts in place of this job, if it waits: the first of those like it, who may have come later."""
    job = state.jobs.get(key)
    return state.ready.group_of(job).head() if job is not None and job in state.ready else None


def _first(kind: tuple[int, bool]) -> tuple[int, bool]:
    """Who stands higher first (see `Spec.standing`), and those with GPUs before those without."""
    return -kind[0], not kind[1]


def _place(promise: StartReservation) -> tuple[int, float, JobKey]:
    """Who stands higher first, and of them who has waited longest."""
    return -promise.standing, promise.group.members[promise.key], promise.key


def _is_due(state: State, group: Group, waited: float, quiet: bool) -> bool:
    """Whether a job has waited long enough."""
    return not state.policy.patience or waited >= times_of(state, group.shape, quiet) * group.counted


def reserved_start_of(state: State, job: Job) -> float | None:
    """When a waiting job and those who wait longer will have waited long enough, at the latest, or since when
    they have; None: nothing is promised.
    """
    group = state.ready.group_of(job)
    if state.policy.patience < 0 or not share_of(state, group.shape):  # there is nothing of what it wants
        return None
    since = group.members[job.key]
    if not state.policy.patience:
        return since
    quiet, prospects = is_quiet(state), ProfileCache(state, state.now)
    latest = since + times_of(state, group.shape, quiet) * group.counted
    ages = state.ready.ages.get((group.standing, group.shape.gpus > 0))
    for place in range(MOST_SEEN if ages is not None else 0):
        older = ages.at(place) if ages is not None else None
        if older is None or older[0] >= since:
            break
        if not prospects.is_held(older[1], older[3]):
            latest = max(latest, older[0] + times_of(state, older[3].shape, quiet) * older[3].counted)
    return None if latest == INFINITE else latest


def times_of(state: State, shape: Shape, quiet: bool) -> float:
    """For how many times its own length such a job may have to wait."""
    return times_for(state.policy.patience, share_of(state, shape), quiet)


def times_for(patience: float, share: float, quiet: bool) -> float:
    """The same of a job that wants this part of the machine."""
    times: float = patience * share**NARROWER
    return 1.0 if quiet and times > 1.0 else times


def share_of(state: State, shape: Shape) -> float:
    """Which part of the machine such a job wants."""
    machine, wanted = state.machine, shape.gpus
    pool = len(machine.gpus) if wanted else machine.cpus
    return (wanted or shape.cpus) / pool if pool else 0.0


def is_quiet(state: State) -> bool:
    """Whether most of the machine stands idle: then keeping it for somebody costs little."""
    machine = state.machine
    gpus = len(machine.gpus)
    return gpus > 0 and float(len(machine.idle)) >= QUIET * float(gpus) and state.policy.patience > 0
