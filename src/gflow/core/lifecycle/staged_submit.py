"""Staged submissions: many jobs, accepted in parts and made visible in one step, or not at all.

`Open` checks the number of jobs against limits and quotas, and reserves it together with the job numbers.
Each `Stage` makes some of the jobs: durable, but hidden. `Close` makes all of them visible at once.
`Arrive` puts a few of them into the queue, or starts them. Until it is closed a submission may be refused;
`Abandon` then removes all of it. Other requests are handled between the parts.

Children of an ended parent arrive in the same way if they are too many for one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from gflow.core.effects import (
    Abandoned,
    AddAuditEntry,
    Closed,
    Effect,
    Reserved,
    Save,
    Staged,
    SubmissionArrived,
)
from gflow.core.events import Abandon, Arrive, Close, Open, Stage
from gflow.core.ids import JobKey, job_key
from gflow.core.lifecycle.finish import finish, release_or_cut_off
from gflow.core.lifecycle.submit import (
    check_number,
    check_owner,
    check_quotas,
    check_submission_part,
    describe_redo,
    find_earlier,
    new_job,
)
from gflow.core.model import Moment, links_of, size_of
from gflow.core.scheduling.scheduler import start_among
from gflow.core.state.job_tables import RECENT
from gflow.core.state.queue_index import Group
from gflow.core.state.quotas import PROJECT, USER
from gflow.core.state.state import State
from gflow.core.state.submissions import Opened, WaitCache
from gflow.core.transitions import CANCELLED, QUEUED
from gflow.errors import Refused


def open_submission(state: State, event: Open, effects: list[Effect]) -> None:
    """Reserve job numbers, and the share of limits and quotas; or refuse."""
    check_owner(state, event.uid)
    check_number(state, event.uid, event.count)
    wanted = Counter({(PROJECT, name): count for name, count in event.projects.items()})
    wanted[USER, event.user] = event.count
    check_quotas(state, wanted)
    opened = Opened(event, state.jobs.next_number)
    state.jobs.next_number += event.count
    state.open[opened.first] = opened
    _reserve(state, opened, 1)
    effects.append(Reserved(opened.first))


def _reserve(state: State, opened: Opened, sign: int) -> None:
    """Count (sign 1) or uncount (-1) the jobs of a submission that is not closed."""
    state.accounting.count_active(opened.uid, sign * opened.count)
    state.accounting.quota_usage.reserve(opened.user, opened.projects, sign * opened.count, sign)


def stage(state: State, event: Stage, effects: list[Effect]) -> None:
    """Make the next jobs of an open submission. A refusal makes the caller abandon all of it."""
    opened = _open(state, event.first)
    found: WaitCache = {}
    specs = find_earlier(state, opened.uid, event.specs, opened.first + len(opened.jobs), opened.names)
    waits = check_submission_part(
        state, opened.uid, opened.user, specs, event.outcomes, event.hidden, opened.waits, found
    )
    wall = event.at.wall
    for spec, wait in zip(specs, waits, strict=True):
        job = new_job(job_key(opened.first + len(opened.jobs)), spec, opened.uid, opened.user, opened.at.wall)
        if job.state is QUEUED and wait is None and spec.begin_at <= wall:
            job.ready_at = opened.at.boot
        opened.jobs[job.key] = job
        opened.arriving[job.key] = opened.first
        opened.order.add(job.key)
        opened.groups[job.spec.group] += 1
        opened.names.add(opened.uid, spec.shared_name, job.key)
        size, links = size_of(job.spec), links_of(job.spec)
        opened.bytes += size
        opened.links += links
        state.accounting.quota_usage.weigh(opened.uid, size, links)
        effects.append(Staged(job))
    opened.waits |= found
    for _, new in found.values():
        if new is not None:
            state.dependencies.link(new)
            new.is_open = True


def close(state: State, event: Close, effects: list[Effect]) -> None:
    """Make all jobs of a submission visible. They enter the queue with later `Arrive` events."""
    opened = _open(state, event.first)
    if len(opened.jobs) != opened.count:
        raise Refused(f"{len(opened.jobs):,} of {opened.count:,} jobs came")
    state.arriving.absorb(opened.arriving)
    state.jobs.add_staged(opened.jobs, opened.order)
    _remember_recent(state, opened)
    for group, count in opened.groups.items():
        state.groups.add(group, count)
    opened.is_closed = True
    effects.append(Closed(opened.first))


def _remember_recent(state: State, opened: Opened) -> None:
    """Add the jobs to the user's recent ones, by number: jobs submitted meanwhile have higher numbers."""
    last = opened.first + opened.count
    new = [job_key(number) for number in range(max(opened.first, last - RECENT), last)]
    recent = state.jobs.recent.pop(opened.uid, ())
    for key in sorted([*recent, *new]):
        state.jobs.remember_recent(opened.uid, key)


def abandon(state: State, event: Abandon, effects: list[Effect]) -> None:
    """Remove a submission that was refused, and everything it reserved."""
    opened = _open(state, event.first)
    del state.open[opened.first]
    _reserve(state, opened, -1)
    state.accounting.quota_usage.weigh(opened.uid, -opened.bytes, -opened.links)
    _leave_waits(state, opened)
    effects.append(Abandoned(opened.first, opened.jobs))


def _open(state: State, first: int) -> Opened:
    opened = state.open.get(first)
    if opened is None or opened.is_closed:
        raise Refused("the submission was given up, and none of its jobs exists", hint="submit them again")
    return opened


def _leave_waits(state: State, opened: Opened) -> None:
    """Unlink the submission from the parents of its jobs: no further jobs will share these waits."""
    for _, wait in opened.waits.values():
        if wait is not None:
            wait.is_open = False
            state.dependencies.unlink_idle(wait)
    opened.waits = {}


# ---------------------------------------------------------------- arrival


def arrive(state: State, event: Arrive, effects: list[Effect]) -> None:
    """Put the next few arriving jobs into the queue, and start those that may start now."""
    opened = state.open.get(event.first)
    keys = _next_arriving(state, opened, event.most) if opened is not None else []
    keys = keys or list(islice(state.arriving, event.most))
    groups = {place_job(state, key, event.at, effects) for key in keys}
    start_among(state, [group for group in groups if group and group.members], event.at, effects)


def _next_arriving(state: State, opened: Opened, most: int) -> list[JobKey]:
    """The next jobs of a closed submission that have not arrived. Some may have arrived out of order."""
    found: list[JobKey] = []
    while len(found) < most and opened.cursor < opened.count:
        key = job_key(opened.first + opened.cursor)
        opened.cursor += 1
        if state.arriving.get(key) == opened.first:
            found.append(key)
    return found


def arrive_first(state: State, keys: Iterable[JobKey], at: Moment, effects: list[Effect]) -> None:
    """Let those of the jobs that are still arriving arrive now, because an event refers to them."""
    if state.arriving:
        for key in keys:
            if key in state.arriving:
                place_job(state, key, at, effects)


def place_job(state: State, key: JobKey, at: Moment, effects: list[Effect]) -> Group | None:
    """Put one arriving job into the queue, or cancel it if a parent failed; return its equivalence class."""
    first, job = state.arriving.pop(key), state.jobs[key]
    if first:
        state.jobs.add(job)
        opened = state.open[first]
        state.jobs.names.add(job.uid, job.spec.shared_name, key)
        effects.append(AddAuditEntry(key, "submitted", describe_redo(job.spec), opened.uid, opened.origin))
        wait = opened.wait_of(job.spec)
        if wait is not None:
            state.dependencies.add(job, wait)
        elif job.state is QUEUED:
            was_ready_at = job.ready_at
            state.admit(job, at, again=bool(was_ready_at))
            if job.ready_at != was_ready_at:  # its begin time has come since the submission was closed
                effects.append(Save(job))
        _count_arrival(state, opened, effects)
    if key in state.dependencies.waits and (cut_off := release_or_cut_off(state, job, at, effects)):
        finish(state, job, CANCELLED, cut_off, at, effects)
    return state.ready.where.get(key)


def _count_arrival(state: State, opened: Opened, effects: list[Effect]) -> None:
    """Count one arrival; after the last, forget the submission."""
    opened.left -= 1
    if not opened.left:
        _leave_waits(state, opened)
        del state.open[opened.first]
        effects.append(SubmissionArrived(opened.first))
