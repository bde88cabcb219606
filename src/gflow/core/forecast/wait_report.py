"""The wait report of a job: all blockers in order, its ETA (`core.forecast.start_time`), and alternatives."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gflow.core.forecast.explain import (
    Blocker,
    explain,
    explain_shape,
    reserved_for,
    spell_broken,
    spell_need,
)
from gflow.core.forecast.start_time import EtaQuery, Start, eta_query_of
from gflow.core.ids import JobKey, label
from gflow.core.model import LOCAL, Job, JobState, Moment
from gflow.core.reasons import HELD
from gflow.core.resources import Shape, slots_of
from gflow.core.scheduling.backfill import may_backfill, reservation_due_at
from gflow.core.scheduling.placement import available, choose, gib, why_impossible
from gflow.core.state.dependencies import Wait
from gflow.core.state.machine import RESTRICTED, suits
from gflow.core.state.reservations import hard_s
from gflow.core.state.state import State

# Running jobs that a report names, at most, for each resource; and parents, each with a line of its own.
MOST_NAMED = 5
# Jobs before it in the queue that a report names, at most.
MOST_NAMED_AHEAD = 3
# `WaitReport.never` of a job that waits for a parent which can no longer do what the job needs.
WITH_DEPENDENCY = "with this dependency"
# An ETA whose interval is longer than this is of no use: the report has the jobs before it instead.
LONGEST_INTERVAL_S = 14 * 86400.0
# Fields of a spec and their new values. An empty text clears the field.
Change = dict[str, int | str]


class Ahead(msgspec.Struct, frozen=True):
    """The jobs that come before a job in the queue."""

    jobs: int
    # How long they take by their runtime estimates, if they use all of the machine.
    work_s: float


class WaitReport(msgspec.Struct, frozen=True):
    """Why a job waits, when it will start, and what would start now."""

    blockers: list[Blocker]
    # None: it cannot be estimated, or only to within weeks (`interval_s`).
    start: Start | None
    # Alternatives: other values of fields with which it would start now.
    instead: list[Change]
    # Limits of its account on a cluster that delay it, in words.
    limits: list[str] = []
    # When it overflows to another target if it still waits here (wall clock).
    overflows_at: float | None = None
    # When it is due for a start reservation (wall clock); may be in the past.
    promised_at: float | None = None
    # Under which circumstances it can never start: `under the current quota`; empty: it can.
    never: str = ""
    # What comes before it, if it waits in the queue here.
    ahead: Ahead | None = None
    # The length of the interval of its ETA, if that is too long to be of use.
    interval_s: float | None = None


def wait_report(state: State, job: Job, at: Moment, query: EtaQuery | None = None) -> WaitReport:
    """The report of a waiting job; changes nothing. `query`: its ETA query, computed already."""
    if query is None and job in state.ready:
        query = eta_query_of(state, job, at.boot)
    blockers = list(_blockers(state, job, at, query))
    if (wait := state.dependencies.waits.get(job.key)) is not None and wait.broken is not None:
        return WaitReport(blockers, None, [], never=WITH_DEPENDENCY)
    if query is None or job.state is not JobState.QUEUED or job not in state.ready:
        begin = may_begin_at(job, at) if job.key in state.deadlines.later else 0.0
        return WaitReport(blockers, Start(begin, begin, begin) if begin > at.wall else None, [])
    overflows_at = None if job.overflows_at is None else at.to_wall(job.overflows_at)
    if never := why_never(state, job):
        return WaitReport(blockers, None, [], overflows_at=overflows_at, never=never)
    start = query.start()
    # A job at a limit gets no start reservation, nor does one that does not fit when all running jobs end.
    has_none = start is None or _is_at_limit(state, job)
    due = None if has_none else reservation_due_at(state, job, at)
    interval_s = 0.0 if start is None else start.latest - start.earliest
    is_useful = start is not None and interval_s <= LONGEST_INTERVAL_S
    return WaitReport(
        blockers,
        Start(*(at.to_wall(time) for time in msgspec.structs.astuple(start)))
        if start and is_useful
        else None,
        list(_alternatives(state, job, at)),
        overflows_at=overflows_at,
        promised_at=None if due is None else at.to_wall(due),
        ahead=Ahead(query.ahead, query.work_ahead_s),
        interval_s=interval_s if start and not is_useful else None,
    )


def why_never(state: State, job: Job) -> str:
    """Under which circumstances the job can never start here; empty: it can."""
    if state.accounting.never_within_quota(job.user, job.spec, state.policy):
        return "under the current quota"
    if why_impossible(state, job.spec.shape):
        return "on this machine as it is"
    if state.machine.is_drained:
        return "while the machine is drained"
    return "on the GPUs that jobs may get now" if _is_closed_to(state, job.spec.shape) else ""


def _is_closed_to(state: State, shape: Shape) -> bool:
    """Whether operators keep so many GPUs from jobs that too few are left for this shape."""
    machine = state.machine
    if shape.gpus <= len(machine.fitting(shape)):
        return False
    allowed = machine.gpus if machine.allowed is None else machine.allowed
    left = [index for index in machine.gpus if index in allowed and index not in machine.drained.gpus]
    return shape.gpus > sum(suits(machine.gpus[index], shape) for index in left)


def _is_at_limit(state: State, job: Job) -> bool:
    """Whether the cap of its group or a quota keeps the job from starting now."""
    return state.is_capped(job) or state.accounting.over_quota(job, state.policy) is not None


def may_begin_at(job: Job, at: Moment) -> float:
    """The wall time before which a job that waits for its time does not start, unless the clock is set."""
    return max(job.spec.begin_at, at.to_wall(job.retry_boot) if job.retry_boot > at.boot else 0.0)


# ---------------------------------------------------------------- blockers


def _blockers(state: State, job: Job, at: Moment, query: EtaQuery | None) -> Iterator[Blocker]:
    if job.state is JobState.HOLD:
        yield Blocker(str(job.reason or HELD))
    if (wait := state.dependencies.waits.get(job.key)) is not None:
        yield from _dependencies(wait, job)
    if job.key in state.remote.jobs and (said := explain(state, job, at)):
        yield said
    if job.key not in state.remote.jobs or job in state.ready:  # it may start here
        yield from _local_blockers(state, job, at)
        if query is not None and job in state.ready and query.ahead:
            yield Blocker("Priority", _spell_ahead(state, job, query))


def _dependencies(wait: Wait, job: Job) -> Iterator[Blocker]:
    """The parents that are missing: each one, or how many and the first if there are many."""
    if wait.broken is not None:
        yield Blocker("Dependency", spell_broken(wait, job.spec))
    needs: dict[str, list[JobKey]] = {}
    for parent in sorted(wait.parents):
        needs.setdefault(spell_need(wait, parent, job.spec), []).append(parent)
    for need, parents in needs.items():
        if len(parents) > MOST_NAMED:
            have = need.replace("is not", "are not").replace("has not", "have not")
            yield Blocker("Dependency", f"{len(parents)} jobs {have}, the first is job {label(parents[0])}")
        else:
            yield from (Blocker("Dependency", f"job {label(parent)} {need}") for parent in parents)


def _spell_ahead(state: State, job: Job, query: EtaQuery) -> str:
    """Which jobs come before it, and why; only how many, if there are many."""
    count = query.ahead
    names = []
    if count <= MOST_NAMED_AHEAD:
        others = [other for key in query.keys_ahead() if (other := state.jobs.get(key)) is not None]
        for other in others:
            why = _why_before(state, other, job)
            names.append(f"job {other.label} ({why})" if why else f"job {other.label}")
    come = "come" if count > 1 else "comes"
    if len(names) != count:
        return f"{count} job{'s' * (count > 1)} {come} before it"
    return f"{' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} {come} before it"


def _why_before(state: State, other: Job, job: Job) -> str:
    """Why another job comes before this one in the queue; empty: it waits longer."""
    if other.spec.priority != job.spec.priority:
        return f"priority {other.spec.priority}"
    theirs, own = state.ready.where.get(other.key), state.ready.group_of(job)
    if theirs is None or theirs.bucket.place > own.bucket.place:
        return ""
    if theirs.bucket.place < own.bucket.place:
        return "its user has used less" if other.uid != job.uid else ""
    if theirs.sort_key >= own.sort_key:
        return ""
    return "shorter" if theirs.length < own.length else "fewer GPUs"


def _local_blockers(state: State, job: Job, at: Moment) -> Iterator[Blocker]:
    if job.spec.begin_at > at.wall or job.retry_boot > at.boot:
        yield Blocker("RetryDelay" if job.retry_at > job.spec.begin_at else "BeginTime")
    if state.machine.is_drained:
        yield Blocker("Drained", state.machine.drained.everything or "")
    if state.is_capped(job):
        running = state.accounting.group_running[job.spec.group]
        jobs = f"{running} jobs of its group are" if running > 1 else "1 job of its group is"
        yield Blocker("JobArrayTaskLimit", f"{jobs} running, and the limit is {job.spec.max_concurrent}")
    if over := state.accounting.over_quota(job, state.policy):
        yield Blocker("Quota", over)
    if job.state is JobState.QUEUED and (job.target == LOCAL or job in state.ready):
        yield from _reserved(state, job, at)
        yield from _missing_resources(state, job, at)


def _reserved(state: State, job: Job, at: Moment) -> Iterator[Blocker]:
    if not job.spec.shape.gpus:
        return
    for one in state.reserved.against(job.user, at.wall, at.wall + hard_s(job.spec)):
        blocker = reserved_for(state, one.gpus, [one.user])
        yield msgspec.structs.replace(blocker, since=one.start, until=one.end)


def _missing_resources(state: State, job: Job, at: Moment) -> Iterator[Blocker]:
    """What the job lacks, which jobs hold it, and which start reservations come first."""
    shape = job.spec.shape
    lacks = explain_shape(state, shape)
    lacks_gpus = shape.gpus > len(available(state, shape))
    lacks_cpus = shape.cpus > state.machine.free_cpus
    lacks_memory = shape.memory_mib > state.machine.free_memory_mib
    if lacks.code == "Resources" and (lacks.detail or lacks_gpus or not lacks_cpus):
        yield lacks
    if lacks_gpus:
        yield from _restricted(state, shape)
    is_about_gpus = lacks_gpus or not (lacks_cpus or lacks_memory or _is_at_limit(state, job))
    if shape.gpus and is_about_gpus:
        holders = _gpu_holders(state, shape)
        for other in _first_to_end(state, holders, at):
            yield _running(state, job, other, f"GPU {','.join(map(str, other.gpu_ids))}")
    if lacks_cpus:
        yield from _taken_cpus(state, job, at)
    if lacks_memory:
        yield from _taken_memory(state, job, at)
    for reservation in state.start_reservations.entries:
        if reservation.key == job.key:
            break
        if reservation.blocks(state.ready.place_of(job)):
            is_higher = reservation.group.precedence > state.ready.group_of(job).precedence
            is_before = reservation.group.bucket.place < state.ready.place_of(job)
            rule = (
                "has a higher priority"
                if is_higher
                else "is of a user who used less"
                if is_before
                else "has waited longer"
            )
            yield Blocker("Promise", f"job {label(reservation.key)} {rule} and has a start reservation")


def _restricted(state: State, shape: Shape) -> Iterator[Blocker]:
    """GPUs of the right kind that are restricted: no job gets them."""
    machine = state.machine
    kept = [
        index
        for index, gpu in sorted(machine.gpus.items())
        if suits(gpu, shape) and (why := machine.closed(index)) is not None and why.kind == RESTRICTED
    ]
    if kept:
        some = f"{len(kept)} GPU{'s' * (len(kept) > 1)} ({','.join(map(str, kept))})"
        yield Blocker(RESTRICTED, f"{some} {'are' if len(kept) > 1 else 'is'} kept from jobs")


def _gpu_holders(state: State, shape: Shape) -> set[JobKey]:
    """Running jobs on usable GPUs of the right kind."""
    machine = state.machine
    return {
        key
        for index in machine.usable
        if suits(machine.gpus[index], shape)
        for key in machine.holders.get(index, ())
        if key in state.running
    }


def _taken_cpus(state: State, job: Job, at: Moment) -> Iterator[Blocker]:
    """How many CPU slots are taken, and by which jobs."""
    machine = state.machine
    yield Blocker("Resources", f"{machine.cpus - machine.free_cpus} of {machine.cpus} CPU slots are taken")
    holders = {key for key, other in state.running.items() if slots_of(other.spec)}
    for other in _first_to_end(state, holders, at):
        slots = slots_of(other.spec)
        yield _running(state, job, other, f"{slots} CPU slot{'s' * (slots > 1)}")


def _taken_memory(state: State, job: Job, at: Moment) -> Iterator[Blocker]:
    """How much memory is taken, and by which jobs."""
    machine = state.machine
    taken = gib(machine.memory_mib - machine.free_memory_mib)
    yield Blocker("Resources", f"{taken} of {gib(machine.memory_mib)} memory are taken")
    holders = {key for key, other in state.running.items() if other.spec.memory_mib}
    for other in _first_to_end(state, holders, at):
        yield _running(state, job, other, f"{gib(other.spec.memory_mib)} of memory")


def _first_to_end(state: State, keys: set[JobKey], at: Moment) -> list[Job]:
    """Of these running jobs, the few that are expected to end first."""
    ends = sorted((state.running.expected_end(state.running[key], at.boot), key) for key in keys)
    return [state.running[key] for _, key in ends[:MOST_NAMED]]


def _running(state: State, job: Job, holder: Job, what: str) -> Blocker:
    """The blocker of `job` that `holder` is, which has the resources `what`."""
    return Blocker(
        "Running",
        f"job {holder.label} has {what}",
        assumed_s=state.running.assumed_s(holder) or msgspec.UNSET,
        user=holder.user if holder.uid != job.uid else msgspec.UNSET,
    )


# ---------------------------------------------------------------- alternatives


def _alternatives(state: State, job: Job, at: Moment) -> Iterator[Change]:
    """Changes with which the job would start now."""
    if state.machine.is_drained or _is_at_limit(state, job):
        return
    shape, barred = job.spec.shape, state.reserved.barred(job, at.wall)
    for gpus in range(shape.gpus - 1, 0, -1):
        ids = choose(state, shape._replace(gpus=gpus), 0, barred)
        if ids is not None and may_backfill(state, job, ids):
            yield {"gpus": gpus}
            break
    if shape.gpus and shape.gpu_type and choose(state, shape._replace(gpu_type=""), 0, barred):
        yield {"gpu_type": ""}
    if len(available(state, shape)) >= shape.gpus:
        if (
            shape.cpus > state.machine.free_cpus
            and choose(state, shape._replace(cpus=state.machine.free_cpus), 0, barred) is not None
        ):
            yield {"cpus": state.machine.free_cpus}
        lacking = shape.memory_mib > state.machine.free_memory_mib
        if (
            lacking
            and choose(state, shape._replace(memory_mib=state.machine.free_memory_mib), 0, barred) is not None
        ):
            yield {"memory_mib": state.machine.free_memory_mib}
        ids = choose(state, shape, 0)
        if ids is not None and (most := _longest_backfill(state, job, ids, at)) >= 60:
            yield {"time_limit_s": int(most // 60) * 60}


def _longest_backfill(state: State, job: Job, gpu_ids: tuple[int, ...], at: Moment) -> float:
    """The longest run time, in seconds, that delays no reservation; 0: no reservation blocks the job."""
    left = [
        one.start_at - at.boot
        for one in state.start_reservations.entries
        if one.blocks(state.ready.place_of(job)) and one.key != job.key
    ]
    left += [
        one.start - job.spec.grace_s - at.wall
        for one in state.reserved.live
        if one.user != job.user and set(one.gpus) & set(gpu_ids)
    ]
    return max(0.0, min(left)) if left else 0.0
