"""Backfill against start reservations (EASY backfilling): no job starves, however many others pass it.

A job that has waited for a multiple of its own length (`patience_for`) gets a start reservation: the earliest
start that the estimated ends of the running jobs allow. From then on another job of the same or lower
precedence starts only if it is estimated to end before that time, or if it uses resources that the reserved
job does not need. Jobs of higher precedence ignore the reservation; against jobs of lower precedence it holds
from the beginning, without patience. Another user's job is taken for as long as the longest run of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gflow.core.ids import JobKey
from gflow.core.model import Job, Moment
from gflow.core.resources import INFINITE, Shape
from gflow.core.scheduling.availability import AvailabilityProfile
from gflow.core.state.queue_index import Group, OldestFirst
from gflow.core.state.reservations import NO_GPUS
from gflow.core.state.start_reservations import StartReservation
from gflow.core.state.state import State

# Upper limits of the search for jobs to reserve for, oldest first: jobs for which a start time is computed,
# and jobs in all, with those that a quota or a cap keeps from starting.
MAX_CANDIDATES: Final = 500
MAX_SCANNED: Final = 25_000
# A job that wants the whole machine waits for `policy.patience` times its length. A job that wants a part of
# it waits for less: patience is scaled by that part, raised to this power.
PATIENCE_EXPONENT: Final = 2 / 3
# If this part of the GPUs is idle, no job waits for more than its own length.
QUIET_IDLE_SHARE: Final = 2 / 3
# A runtime estimate is an upper quartile: most jobs take less. A job that would backfill is assumed to take
# this part of its estimate, or the part of the machine that is reserved, whichever is larger.
CAUTION: Final = 0.5


class ProfileCache:
    """Availability profiles at one time, shared by all jobs that ask for the same kind of GPU."""

    __slots__ = ("_at", "_has_rules", "_is_over", "_is_quiet", "_profiles", "_state", "machine")

    def __init__(self, state: State, at: Moment) -> None:
        self._state, self._at, self.machine = state, at, state.machine
        self._has_rules, self._is_quiet = state.has_quotas_or_reservations, is_quiet(state)
        # By the kind of GPU, and the GPUs that are barred by GPU reservations.
        self._profiles: dict[object, AvailabilityProfile] = {}
        # Whether a quota keeps jobs of this user and project from starting that ask for so many GPUs.
        self._is_over: dict[tuple[int, str, int], bool] = {}

    def is_limited(self, key: JobKey, group: Group) -> bool:
        """Whether a quota or a cap keeps this job of the group from starting, whatever is free."""
        if not self._has_rules and not group.key.max_concurrent:
            return False
        state, job = self._state, self._state.jobs[key]
        if state.is_capped(job):
            return True
        owner = (job.uid, job.spec.project, group.gpus)
        is_over = self._is_over.get(owner)
        if is_over is None:
            is_over = self._is_over[owner] = state.accounting.over_quota(job, state.policy) is not None
        return is_over

    def is_due(self, group: Group, since: float) -> bool:
        """Whether a job of this group that waits since then has waited enough for a start reservation."""
        return self._at.boot - since >= self.patience_s(group)

    def patience_s(self, group: Group) -> float:
        """How long a job of this group waits before it gets a start reservation."""
        patience = self._state.policy.patience
        if not patience:
            return 0.0
        share = machine_share(self._state, group.shape)
        return patience_for(patience, share, self._is_quiet) * group.patience_basis_s

    def reserve(self, key: JobKey, group: Group, *, is_due: bool = True) -> StartReservation | None:
        """A reservation of the earliest start of this job; None: it does not fit even when all jobs ended."""
        kind: object = group.kind
        state, now = self._state, self._at.boot
        barred = NO_GPUS
        if self._has_rules:
            barred = state.reserved.barred(state.jobs[key], self._at.wall)
            kind = (kind, barred)
        profile = self._profiles.get(kind)
        if profile is None:
            profile = self._profiles[kind] = AvailabilityProfile(state, group.shape, now, barred)
        index = profile.first_fit(group.gpus, group.cpus, group.memory_mib)
        if index < 0:
            return None
        caution = caution_for(machine_share(state, group.shape))
        free = profile.availability(index)
        return StartReservation(key, group, now, profile.times[index], caution, free, is_due=is_due)


def caution_for(share: float) -> float:
    """The part of a runtime estimate that counts against a reservation of this share of the machine."""
    return share if share > CAUTION else CAUTION


def length_against(state: State, job: Job, reservation: StartReservation) -> float:
    """How long a job is assumed to run in backfill against this reservation."""
    if reservation.group.key.uid != job.uid:
        return state.ready.longest_s(job)
    return assumed_length(reservation.caution, *state.ready.runtime_bounds(job))


def assumed_length(caution: float, limit_s: float, estimated_s: float) -> float:
    """How long a job is assumed to run in backfill: `caution` times its estimate, but at most its limit."""
    careful = caution * estimated_s
    return careful if careful < limit_s else limit_s


def has_limited_reservation(state: State, at: Moment) -> bool:
    """Whether a quota or a cap now keeps a job from starting that has a reservation."""
    profiles = ProfileCache(state, at)
    return any(profiles.is_limited(one.key, one.group) for one in state.start_reservations.entries)


def may_backfill(state: State, job: Job, gpu_ids: tuple[int, ...]) -> bool:
    """Whether starting this job now on these GPUs would delay no existing reservation."""
    return refusing_reservation(state, job, gpu_ids) is None


def refusing_reservation(state: State, job: Job, gpu_ids: tuple[int, ...]) -> StartReservation | None:
    """The first reservation that starting this job now on these GPUs would delay; None: there is none.

    A reserved job need only respect earlier reservations. A part of the estimate counts only against
    reservations of the same user.
    """
    reservations = state.start_reservations.entries
    if not reservations:
        return None
    ready, key, backfill = state.ready, job.key, state.policy.backfill
    group = ready.where.get(key)
    shape, place = (
        (job.spec.shape, ready.place_of(job)) if group is None else (group.shape, group.bucket.place)
    )
    for reservation in reservations:
        if reservation.key == key:
            return None
        if reservation.blocks(place) and not (
            backfill and reservation.allows(shape, gpu_ids, length_against(state, job, reservation))
        ):
            return reservation
    return None


def reservations_due(state: State, at: Moment) -> list[StartReservation]:
    """Start reservations as of now: for jobs that others are preempted for, then for the oldest jobs that
    have waited long enough, or that jobs of lower precedence wait behind. In order of precedence, then of
    waiting time.
    """
    if state.machine.is_drained:
        return []
    profiles = ProfileCache(state, at)
    found = _reserve_for_preempting(state, profiles) if state.running.yielding else []
    if state.policy.patience < 0:
        return found
    ages, kinds = state.ready.ages, state.ready.age_kinds()
    reserved_keys = frozenset([reservation.key for reservation in found])
    # Each kind of GPU, and jobs without GPUs, have a budget of their own: otherwise one could starve another.
    used: dict[tuple[bool, int], int] = {}
    due: list[StartReservation] = []
    for kind in kinds:
        budget = kind[1:]
        before = used.get(budget, 0)
        most = state.policy.max_start_reservations - before
        made = _reserve_for_oldest(profiles, ages[kind], most, reserved_keys, is_due=True)
        used[budget] = before + len(made)
        if not made and kind[0] < kinds[-1][0]:
            made = _reserve_for_oldest(profiles, ages[kind], 1, reserved_keys, is_due=False)
        due += made
    if len(kinds) > 1:
        due.sort(key=_reservation_order)
    return found + due


def _candidates(
    profiles: ProfileCache, ages: OldestFirst, reserved_keys: frozenset[JobKey]
) -> Iterator[tuple[float, JobKey, Group]]:
    """The heads of groups that fit on the usable GPUs and that no quota or cap keeps from starting, and since
    when each waits, oldest first. Jobs that have a reservation are left out."""
    machine, count = profiles.machine, 0
    for place in range(MAX_SCANNED):
        age = ages.at(place)
        if age is None or count == MAX_CANDIDATES:
            break
        since, key, _, group = age
        if group.gpus > len(machine.fitting(group.shape)) or key in reserved_keys:
            continue
        if not profiles.is_limited(key, group):
            count += 1
            yield since, key, group


def _reserve_for_oldest(
    profiles: ProfileCache, ages: OldestFirst, most: int, reserved_keys: frozenset[JobKey], *, is_due: bool
) -> list[StartReservation]:
    """At most `most` reservations for these jobs, oldest first, except jobs that have one: for those that are
    due, or for any, which bind only later places."""
    found: list[StartReservation] = []
    for since, key, group in _candidates(profiles, ages, reserved_keys):
        if len(found) == most or (is_due and not profiles.is_due(group, since)):
            break
        reservation = profiles.reserve(key, group, is_due=is_due)
        if reservation is not None:
            found.append(reservation)
    return found


def _reserve_for_preempting(state: State, profiles: ProfileCache) -> list[StartReservation]:
    """Reservations for the jobs that running jobs are preempted for: no other job may take their GPUs."""
    keys = {head for key in state.running.yielding.values() if (head := head_of(state, key)) is not None}
    groups = [(key, state.ready.where[key]) for key in sorted(keys)]
    made = [profiles.reserve(key, group) for key, group in groups if not profiles.is_limited(key, group)]
    return [reservation for reservation in made if reservation is not None]


def head_of(state: State, key: JobKey) -> JobKey | None:
    """The head of this job's group, which is what would actually start; None: the job does not wait."""
    job = state.jobs.get(key)
    return state.ready.group_of(job).head() if job is not None and job in state.ready else None


def _reservation_order(reservation: StartReservation) -> tuple[int, float, JobKey]:
    """Sort key: the earlier place first, then the job that has waited longest."""
    return reservation.group.bucket.place, reservation.group.members[reservation.key], reservation.key


def reservation_due_at(state: State, job: Job, at: Moment) -> float | None:
    """The boot time by which a waiting job is due for a start reservation; it may be in the past.

    The jobs that have waited longer come first, so that the latest of these times counts. None: the job never
    gets a reservation.
    """
    group = state.ready.group_of(job)
    if state.policy.patience < 0 or not machine_share(state, group.shape):  # the machine has no such resource
        return None
    since, profiles = group.members[job.key], ProfileCache(state, at)
    latest = since + profiles.patience_s(group)
    ages = state.ready.ages[state.ready.age_kind_of(group)]
    for older_since, _, older in _candidates(profiles, ages, frozenset()):
        if older_since >= since:
            break
        latest = max(latest, older_since + profiles.patience_s(older))
    return None if latest == INFINITE else latest


def patience_for(patience: float, share: float, quiet: bool) -> float:
    """How many times its own length a job that wants this share of the machine waits for a reservation."""
    times: float = patience * share**PATIENCE_EXPONENT
    return 1.0 if quiet and times > 1.0 else times


def machine_share(state: State, shape: Shape) -> float:
    """The share of the machine's GPUs that a job of this shape wants; without GPUs, of its CPU slots."""
    machine, wanted = state.machine, shape.gpus
    pool = len(machine.gpus) if wanted else machine.cpus
    return (wanted or shape.cpus) / pool if pool else 0.0


def is_quiet(state: State) -> bool:
    """Whether most GPUs are idle: then a start reservation costs little."""
    gpus = len(state.machine.gpus)
    return gpus > 0 and len(state.machine.idle) >= QUIET_IDLE_SHARE * gpus
