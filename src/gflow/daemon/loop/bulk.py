"""Bulk work in parts of at most PART jobs, so that other requests wait for one part, never for all of it.

A submission is all or nothing. Its jobs become durable part by part, hidden, and become visible with the
commit that closes it (`core.lifecycle.staged_submit`). A daemon that ends before that leaves an open
submission, and the next daemon deletes its jobs. A user action (cancel, hold, release, update) is checked for
all jobs first, then recorded as an intent in one commit, then applied part by part; the next daemon continues
an unfinished intent. Both are answered when all parts are durable. Users take turns, part by part
(`daemon.loop.turns`). If the client disconnects before the submission is closed or the intent is recorded,
the request is abandoned.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from gflow.core.effects import Abandoned, Claimed, Closed, Effect, Reserved
from gflow.core.events import (
    Abandon,
    Arrive,
    Cancel,
    Claim,
    Close,
    Event,
    Hold,
    Open,
    Release,
    Stage,
    Tick,
    Unclaim,
    Update,
    UserAction,
)
from gflow.core.ids import JobKey, job_key
from gflow.core.model import AuditEntry, JobState, Moment, Spec
from gflow.core.state.state import PART, State
from gflow.daemon.loop.commands import Command, ReferenceResolver, Submitting, hidden_among, parents_of
from gflow.daemon.loop.turns import Turns
from gflow.errors import GflowError, UsageError
from gflow.fault_points import point
from gflow.store.bulk import Bulk, Intent, OpenSubmission, keys_of, runs_of
from gflow.store.port import Changes, Store, Submission, neighbours
from gflow.wire.requests import Described

log = logging.getLogger("gflow.bulk")


class Loop(Protocol):
    """The part of the event loop (`daemon.loop.loop.Loop`) that bulk work uses."""

    state: State
    turns: Turns
    # Numbers of intents that are being carried out.
    busy: set[int]
    read_only: str

    async def run_command(self, command: Command) -> Any: ...
    def post(self, make: Callable[[Moment], Event]) -> None: ...
    def arrival(self, first: int) -> asyncio.Future[None]: ...
    def forget_arrival(self, first: int) -> None: ...
    def next_intent(self) -> int: ...


# The uid under which arrivals take turns with users.
ARRIVALS = -1
# Number of jobs of a refused submission that one commit deletes.
DELETED = 20 * PART
ACTIONS: dict[str, type[UserAction]] = {"cancel": Cancel, "hold": Hold, "release": Release, "update": Update}
_KINDS = {type_: kind for kind, type_ in ACTIONS.items()}
_SPEC_TYPES = {field.name: field.type for field in msgspec.structs.fields(Spec)}


# ---------------------------------------------------------------- submissions


class Taking:
    """A submission in parts: its remaining jobs, and the data that its parts share."""

    def __init__(self, command: Submitting) -> None:
        self.uid, self.user = command.uid, command.user
        self.token, self.origin = command.token, command.origin
        self.count, self.first, self.staged = command.count, 0, 0
        # Each job description is freed as its job is made.
        self._left = deque(command.jobs)
        self.projects = command.projects
        self._relative = command.relative
        self._hides, self._rights = command.hides, command.rights
        self._resolver = ReferenceResolver(command.uid)
        # Final states of parents, cached: they never change.
        self._ended: dict[JobKey, JobState] = {}
        self._last: Spec | None = None

    @property
    def keys(self) -> tuple[JobKey, ...]:
        return neighbours(job_key(self.first), self.count)

    def resolve(self, state: State) -> None:
        """Fix the meaning of relative references (`@`) for all parts."""
        self._resolver.pin(state, self._relative)

    def next_part(self) -> list[Described]:
        return [self._left.popleft() for _ in range(min(PART, len(self._left)))]

    def specs(self, part: list[Described], state: State) -> tuple[Spec, ...]:
        """The specs of a part, with parents and group set. Equal neighbours become one object."""
        made: list[Spec] = []
        for job in part:
            spec, (all_of, any_of) = job.spec, job.references
            more: dict[str, Any] = {}
            if all_of or any_of:
                keys = self._resolver.keys
                more |= {"depends_on": keys(state, all_of), "depends_any": keys(state, any_of)}
            if (spec.max_concurrent and not spec.array) or job.is_of_sweep:
                more["group"] = self.first
            if more:
                spec = msgspec.structs.replace(spec, **more)
            if self._last is None or spec != self._last:
                self._last = spec
            made.append(self._last)
        if self._rights is not None:
            self._rights.check_specs(made)
        return tuple(made)

    def hidden(self, specs: Sequence[Spec]) -> frozenset[JobKey]:
        """The parents that the submitter may not see."""
        return hidden_among(parents_of(specs), self._hides)

    def outcomes(self, state: State, store: Store, specs: Sequence[Spec]) -> dict[JobKey, JobState]:
        ended = {key for key in parents_of(specs) if not state.is_active(key)}
        self._ended |= store.outcomes(ended - self._ended.keys())
        return self._ended

    def record(self, *, closed: bool = False) -> OpenSubmission:
        return OpenSubmission(self.first, self.count, self.uid, self.origin, closed)


class _Opening:
    """Open a submission: reserve its job numbers and its share of the limits."""

    def __init__(self, taking: Taking) -> None:
        self.origin = taking.origin
        self._taking = taking

    def event(self, state: State, store: Store, at: Moment) -> Event:
        taking = self._taking
        taking.resolve(state)
        return Open(
            at=at,
            uid=taking.uid,
            user=taking.user,
            count=taking.count,
            projects=dict(taking.projects),
            origin=taking.origin,
        )

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        self._taking.first = next(effect.first for effect in effects if isinstance(effect, Reserved))
        changes.bulk[self._taking.first] = self._taking.record()


class _Staging:
    """Store one part of a submission as hidden jobs."""

    def __init__(self, taking: Taking, part: list[Described]) -> None:
        self.origin = taking.origin
        self._taking = taking
        self._part = part

    def event(self, state: State, store: Store, at: Moment) -> Event:
        specs = self._taking.specs(self._part, state)
        outcomes = self._taking.outcomes(state, store, specs)
        hidden = self._taking.hidden(specs)
        return Stage(at=at, first=self._taking.first, specs=specs, outcomes=outcomes, hidden=hidden)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        for job in self._part:
            changes.blobs.update(job.blobs)
        self._taking.staged += len(self._part)


class _Closing:
    """Close a submission: its jobs become visible."""

    def __init__(self, taking: Taking) -> None:
        self.origin = taking.origin
        self._taking = taking

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Close(at=at, uid=self._taking.uid, first=self._taking.first)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        taking = self._taking
        assert any(isinstance(effect, Closed) for effect in effects)
        changes.submissions.append(Submission(taking.uid, taking.token, taking.keys, at.wall))
        changes.bulk[taking.first] = taking.record(closed=True)


class _Abandoning:
    """Abandon a submission. The answer is its jobs; the caller frees them a few at a time."""

    origin = "daemon"

    def __init__(self, first: int) -> None:
        self._first = first

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Abandon(at=at, first=self._first) if self._first in state.open else Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> dict[JobKey, Any]:
        return next((effect.jobs for effect in effects if isinstance(effect, Abandoned)), {})


class _Deleting:
    """Delete a span of hidden jobs from the database, or (None) the record of the submission."""

    origin = "daemon"

    def __init__(self, first: int, span: tuple[JobKey, JobKey] | None) -> None:
        self._first = first
        self._span = span

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        if self._span is not None:
            changes.discarded.append(self._span)
        else:
            changes.bulk[self._first] = None


class _Arriving:
    """Move one part of a submission's jobs into the queue; `first` 0: of the earliest submission."""

    origin = "daemon"

    def __init__(self, first: int) -> None:
        self._first = first

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Arrive(at=at, most=PART, first=self._first)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        return None


def check_wanted(request: Submitting | Wanted) -> None:
    """Stop the request if its client disconnected."""
    if request.is_dropped:
        raise UsageError("the client hung up")


async def submit(loop: Loop, command: Submitting) -> tuple[JobKey, ...]:
    """Submit jobs in parts; on an error none of them remains."""
    taking = Taking(command)
    command.jobs = []
    async with loop.turns.of(command.uid):
        check_wanted(command)
        await loop.run_command(_Opening(taking))
    point("bulk.opened")
    try:
        while part := taking.next_part():
            async with loop.turns.of(command.uid):
                check_wanted(command)
                await loop.run_command(_Staging(taking, part))
            point("bulk.staged")
        arrived = loop.arrival(taking.first)
        async with loop.turns.of(command.uid):
            check_wanted(command)
            await loop.run_command(_Closing(taking))
    except GflowError:
        await _abandon(loop, taking)
        raise
    point("bulk.closed")
    await arrived
    return taking.keys


async def _abandon(loop: Loop, taking: Taking) -> None:
    """Delete all jobs of a submission. If that fails they stay hidden, and `recovered` deletes them later."""
    loop.forget_arrival(taking.first)
    try:
        jobs = await loop.run_command(_Abandoning(taking.first))
        for start in range(0, taking.staged, DELETED):
            last = min(start + DELETED, taking.staged) - 1
            async with loop.turns.of(taking.uid):
                span = job_key(taking.first + start), job_key(taking.first + last)
                await loop.run_command(_Deleting(taking.first, span))
                for _ in range(min(DELETED, len(jobs))):
                    jobs.popitem()
        await loop.run_command(_Deleting(taking.first, None))
    except GflowError as error:
        log.warning("submission %d was refused, and is deleted later: %s", taking.first, error)


async def process_arrivals(loop: Loop) -> None:
    """Move all jobs of closed submissions into the queue, part by part.

    Users take turns in the order of their uids; after the last one, the earliest submission has a turn.
    """
    uid = ARRIVALS
    while loop.state.arriving:
        async with loop.turns.of(ARRIVALS):
            closed = {one.uid: one.first for one in reversed(loop.state.open.values()) if one.is_closed}
            uid = min((other for other in closed if other > uid), default=ARRIVALS)
            await loop.run_command(_Arriving(closed.get(uid, 0)))
        point("bulk.arrived")


# ---------------------------------------------------------------- user actions


class _Claiming:
    """Check an action for one part of the jobs, and claim them for it."""

    def __init__(self, action: Wanted, keys: tuple[JobKey, ...], weight: tuple[int, int]) -> None:
        self.origin = action.origin
        self._action, self._keys, self._weight = action, keys, weight

    def event(self, state: State, store: Store, at: Moment) -> Event:
        size, links = self._weight
        return Claim(at=at, action=self._action.event(self._keys, state, store, at), size=size, links=links)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> tuple[int, int]:
        return next((effect.size, effect.links) for effect in effects if isinstance(effect, Claimed))


class Wanted:
    """A user action on many jobs: its event without the keys, and the blobs that it refers to."""

    def __init__(
        self,
        kind: type[UserAction],
        uid: int,
        origin: str,
        *,
        governs: bool,
        blobs: dict[str, bytes] | None = None,
        **more: Any,
    ) -> None:
        self.kind, self.uid, self.origin, self.governs = kind, uid, origin, governs
        self.more = more
        self.blobs = blobs or {}
        # Whether the client disconnected.
        self.is_dropped = False

    @classmethod
    def of(cls, intent: Intent) -> Wanted:
        """The action of a stored intent."""
        kind, more = ACTIONS[intent.kind], dict(intent.fields)
        if kind is Update:
            more["fields"] = {
                name: msgspec.convert(value, _SPEC_TYPES[name]) for name, value in more["fields"].items()
            }
        return cls(kind, intent.uid, intent.origin, governs=intent.governs, **more)

    def to(self, keys: tuple[JobKey, ...]) -> Doing:
        """A command that applies this action to these jobs."""
        return Doing(self, keys)

    def intent(self, keys: Sequence[JobKey]) -> Intent:
        kind = _KINDS[self.kind]
        return Intent(kind, self.uid, self.governs, self.origin, runs_of(keys), self.more)

    def event(self, keys: tuple[JobKey, ...], state: State, store: Store, at: Moment) -> UserAction:
        more: dict[str, Any] = {}
        if self.kind is Update:
            changed = self.more["fields"]
            parents = {*changed.get("depends_on", ()), *changed.get("depends_any", ())}
            jobs = filter(None, (state.jobs.get(key) for key in keys))
            parents |= parents_of(job.spec for job in jobs)
            more["outcomes"] = store.outcomes(key for key in parents if not state.is_active(key))
        return self.kind(at=at, uid=self.uid, governs=self.governs, keys=keys, **self.more, **more)


class _Intending:
    """Record the intent, before any job is changed."""

    def __init__(self, action: Wanted, number: int, intent: Intent) -> None:
        self.origin = action.origin
        self._action, self._number, self._intent = action, number, intent

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.bulk[self._number] = self._intent
        changes.blobs.update(self._action.blobs)


class Doing:
    """Apply an action to these jobs; as part of an intent, to those that have not ended meanwhile."""

    def __init__(
        self, action: Wanted, keys: tuple[JobKey, ...], progress: dict[int, int] | None = None
    ) -> None:
        self.origin = action.origin
        self._action, self._keys = action, keys
        # As part of an intent: its number, and how many jobs are done after this part.
        self._progress = progress

    def event(self, state: State, store: Store, at: Moment) -> Event:
        keys = self._keys
        if self._progress is not None:
            keys = tuple(key for key in keys if state.is_active(key))
        return self._action.event(keys, state, store, at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.blobs.update(self._action.blobs)
        changes.progress.update(self._progress or {})


class _Done:
    """Delete a finished intent, and release the claim on its jobs."""

    origin = "daemon"

    def __init__(self, number: int, keys: tuple[JobKey, ...]) -> None:
        self._number, self._keys = number, keys

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Unclaim(at=at, keys=self._keys)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.bulk[self._number] = None


async def do(loop: Loop, action: Wanted, keys: Sequence[JobKey]) -> None:
    """Apply an action to all of these jobs; if it is refused for one of them, to none."""
    weight = 0, 0
    claimed: list[JobKey] = []
    intent, number = action.intent(keys), loop.next_intent()
    try:
        for part in _parts(keys):
            async with loop.turns.of(action.uid):
                check_wanted(action)
                weight = await loop.run_command(_Claiming(action, part, weight))
                claimed += part
        loop.busy.add(number)
        async with loop.turns.of(action.uid):
            check_wanted(action)
            await loop.run_command(_Intending(action, number, intent))
    except GflowError:
        loop.busy.discard(number)
        if claimed:
            loop.post(lambda at: Unclaim(at=at, keys=tuple(claimed)))
        raise
    point("bulk.intended")
    await carry_out(loop, number, action, keys)


async def carry_out(loop: Loop, number: int, action: Wanted, keys: Sequence[JobKey], done: int = 0) -> None:
    """Apply a recorded intent part by part, beginning after the first `done` jobs."""
    loop.busy.add(number)
    try:
        for part in _parts(keys[done:]):
            done += len(part)
            async with loop.turns.of(action.uid):
                await _do_part(loop, action, part, {number: done})
            point("bulk.done-part")
        await loop.run_command(_Done(number, tuple(keys)))
        point("bulk.done")
    finally:
        loop.busy.discard(number)


async def _do_part(loop: Loop, action: Wanted, part: tuple[JobKey, ...], progress: dict[int, int]) -> None:
    """Apply an action to one part. Jobs that have changed so that it is refused are left unchanged."""
    try:
        await loop.run_command(Doing(action, part, progress))
    except GflowError as error:
        if loop.read_only:
            raise  # the intent is durable: it continues when the disk can be written again
        ((number, done),) = progress.items()
        for position, key in enumerate(part, done - len(part) + 1):
            try:
                await loop.run_command(Doing(action, (key,), {number: position}))
            except GflowError:
                log.info("job %d was left unchanged: %s", key, error)
                loop.post(lambda at, key=key: Unclaim(at=at, keys=(key,)))  # type: ignore[misc]


def _parts(keys: Sequence[JobKey]) -> Iterator[tuple[JobKey, ...]]:
    iterator = iter(keys)
    while part := tuple(islice(iterator, PART)):
        yield part


# ---------------------------------------------------------------- recovery


def claimed_by(bulk: dict[int, Bulk]) -> set[JobKey]:
    """The jobs that unfinished intents still have to change."""
    found: set[JobKey] = set()
    for one in bulk.values():
        if isinstance(one, Intent) and ACTIONS[one.kind] is not Release:
            found.update(islice(keys_of(one.keys), one.done, None))
    return found


def recovered(store: Store, busy: set[int]) -> Changes:
    """The changes that recover unfinished submissions: open ones are deleted, closed ones get audit entries.

    `busy`: numbers of the submissions in progress in this daemon.
    """
    changes = Changes()
    for number, bulk in store.unfinished().items():
        if number in busy or not isinstance(bulk, OpenSubmission):
            continue
        changes.bulk[number] = None
        if bulk.closed:
            unlogged = store.unheard(bulk)
            changes.audit += [
                AuditEntry(at, key, bulk.uid, bulk.origin, "submitted", "") for key, at in unlogged
            ]
        else:
            changes.discarded.append(bulk.span)
    return changes


async def resume(loop: Loop, number: int, intent: Intent) -> None:
    """Continue an intent that an earlier daemon recorded."""
    try:
        await carry_out(loop, number, Wanted.of(intent), list(keys_of(intent.keys)), intent.done)
    except GflowError as error:
        log.warning("a %s of many jobs is not finished yet: %s", intent.kind, error)
