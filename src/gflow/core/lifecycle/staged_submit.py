"""A submission of many jobs, taken in parts: all of it or nothing, and no part holds up the others.

`Open` judges its number against limits and quotas and reserves that, with the numbers of its jobs. Each
`Stage` makes some of them: they are durable then, belong to an open submission, and are hidden.
`Close` makes them jobs like all others, at once. `Arrive` puts a few of them where they wait, or starts
them. Until it is closed a submission may be refused, and then `Abandon` leaves nothing of it.

Jobs whose last parent ends arrive in the same way, where they are too many for one turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

import msgspec

from gflow.core.effects import Abandoned, AddAuditEntry, Closed, Effect, Reserved, Settled, Staged
from gflow.core.events import Abandon, Arrive, Close, Open, Stage
from gflow.core.ids import JobKey, job_key, number_of
from gflow.core.lifecycle.finish import finish, free_or_cut_off
from gflow.core.lifecycle.submit import admitted_part, check_number, check_owner, check_quotas
from gflow.core.model import LOCAL, ArrayProgress, Job, Moment, Spec, links_of, size_of
from gflow.core.scheduling.scheduler import start_among
from gflow.core.state.queue_index import Group
from gflow.core.state.quotas import PROJECT, USER
from gflow.core.state.state import RECENT, State
from gflow.core.state.submissions import Judgements, Opened
from gflow.core.task_set import parse_tasks
from gflow.core.transitions import CANCELLED, HOLD, QUEUED
from gflow.errors import Refused


def new_job(key: JobKey, spec: Spec, uid: int, user: str, wall: float) -> Job:
    """A job as it is when it has just been submitted."""
    progress = None
    if spec.array:
        progress = ArrayProgress(parse_tasks(spec.array))
        # An array's tasks are a group of their own, so its cap counts them and nothing else: also
        # not the jobs submitted with it, whose group has the number of the first of them.
        spec = msgspec.structs.replace(spec, group=-number_of(key))
    return Job(
        key=key,
        spec=spec,
        uid=uid,
        user=user,
        submitted_at=wall,
        progress=progress,
        state=HOLD if spec.hold else QUEUED,
        reason="JobHeldUser" if spec.hold else "",
        target=spec.on or LOCAL,
    )


def open_submission(state: State, event: Open, effects: list[Effect]) -> None:
    """Reserve numbers, and what counts against limits and quotas; or refuse."""
    check_owner(state, event.uid)
    check_number(state, event.uid, event.count)
    wanted = Counter({(PROJECT, name): count for name, count in event.projects.items()})
    wanted[USER, event.user] = event.count
    check_quotas(state, wanted)
    opened = Opened(event, state.next_number)
    state.next_number += event.count
    state.open[opened.first] = opened
    _reserve(state, opened, 1)
    effects.append(Reserved(opened.first))


def _reserve(state: State, opened: Opened, sign: int) -> None:
    state.count_person(opened.uid, sign * opened.count)
    state.ledger.reserve(opened.user, opened.projects, sign * opened.count, sign)


def stage(state: State, event: Stage, effects: list[Effect]) -> None:
    """Make the next jobs of an open submission, or refuse them and so all of it."""
    opened = _open(state, event.first)
    found: Judgements = {}
    waits = admitted_part(state, opened.uid, event.specs, event.outcomes, event.hidden, opened.waits, found)
    wall = event.at.wall
    for spec, wait in zip(event.specs, waits, strict=True):
        job = new_job(job_key(opened.first + len(opened.jobs)), spec, opened.uid, opened.user, opened.at.wall)
        if job.state is QUEUED and wait is None and spec.begin_at <= wall:
            job.ready_at = opened.at.boot
        opened.jobs[job.key] = job
        size, links = size_of(job.spec), links_of(job.spec)
        opened.bytes += size
        opened.links += links
        state.ledger.weigh(opened.uid, size, links)
        effects.append(Staged(job))
    opened.waits |= found
    for _, new in found.values():
        if new is not None:
            state.link(new)
            new.is_open = True


def close(state: State, event: Close, effects: list[Effect]) -> None:
    """All its jobs are there: from now on they are jobs like all others."""
    opened = _open(state, event.first)
    if len(opened.jobs) != opened.count:
        raise Refused(f"{len(opened.jobs):,} of {opened.count:,} jobs came")
    state.jobs.update(opened.jobs)
    state.arriving.update(dict.fromkeys(opened.jobs, opened.first))
    _remember(state, opened)
    opened.jobs = {}
    opened.is_closed = True
    effects.append(Closed(opened.first))


def _remember(state: State, opened: Opened) -> None:
    """`@` goes by number: jobs that were submitted meanwhile have higher ones."""
    last = opened.first + opened.count
    new = [job_key(number) for number in range(max(opened.first, last - RECENT), last)]
    recent = state.recent.pop(opened.uid, ())
    for key in sorted([*recent, *new]):
        state.remember_recent(opened.uid, key)


def abandon(state: State, event: Abandon, effects: list[Effect]) -> None:
    """Forget a submission that was refused."""
    opened = _open(state, event.first)
    del state.open[opened.first]
    _reserve(state, opened, -1)
    state.ledger.weigh(opened.uid, -opened.bytes, -opened.links)
    _leave_waits(state, opened)
    effects.append(Abandoned(opened.first, opened.jobs))


def _open(state: State, first: int) -> Opened:
    opened = state.open.get(first)
    if opened is None or opened.is_closed:
        raise Refused("the submission was given up, and none of its jobs exists", hint="submit them again")
    return opened


def _leave_waits(state: State, opened: Opened) -> None:
    """No more jobs come that have these parents."""
    for _, wait in opened.waits.values():
        if wait is not None:
            wait.is_open = False
            state.unlink_idle(wait)
    opened.waits = {}


# ---------------------------------------------------------------- arriving


def arrive(state: State, event: Arrive, effects: list[Effect]) -> None:
    """Put the first few of those that arrive where they wait, and start what may start of them."""
    opened = state.open.get(event.first)
    keys = _next_of(state, opened, event.most) if opened is not None else []
    keys = keys or list(islice(state.arriving, event.most))
    groups = {take_in(state, key, event.at, effects) for key in keys}
    start_among(state, [group for group in groups if group and group.members], event.at, effects)


def _next_of(state: State, opened: Opened, most: int) -> list[JobKey]:
    """The next jobs of a closed submission that have yet to arrive; some may have come out of order."""
    found: list[JobKey] = []
    while len(found) < most and opened.cursor < opened.count:
        key = job_key(opened.first + opened.cursor)
        opened.cursor += 1
        if state.arriving.get(key) == opened.first:
            found.append(key)
    return found


def arrive_first(state: State, keys: Iterable[JobKey], at: Moment, effects: list[Effect]) -> None:
    """Those of the jobs that arrive do so now: an event is about them."""
    if state.arriving:
        for key in keys:
            if key in state.arriving:
                take_in(state, key, at, effects)


def take_in(state: State, key: JobKey, at: Moment, effects: list[Effect]) -> Group | None:
    """Put one job where it waits (its group, if for resources); or cancel it, if its parents failed."""
    first, job = state.arriving.pop(key), state.jobs[key]
    if first:
        opened = state.open[first]
        effects.append(AddAuditEntry(key, "submitted", "", opened.uid, opened.origin))
        wait = opened.wait_of(job.spec)
        if wait is not None:
            state.wait_for(job, wait)
        elif job.state is QUEUED:
            state.admit(job, at, again=bool(job.ready_at))
        _count_in(state, opened, effects)
    if key in state.waits and (cut_off := free_or_cut_off(state, job, at, effects)):
        finish(state, job, CANCELLED, cut_off, at, effects)
    return state.ready.where.get(key)


def _count_in(state: State, opened: Opened, effects: list[Effect]) -> None:
    opened.left -= 1
    if not opened.left:
        _leave_waits(state, opened)
        del state.open[opened.first]
        effects.append(Settled(opened.first))
