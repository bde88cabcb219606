"""What is about many jobs, cut into turns: others wait for one part of it, never for the whole.

A submission is all or nothing: its jobs become durable part by part, hidden, and are jobs from the commit
on that closes it (`core.lifecycle.staged_submit`). A daemon that ends before leaves an open submission, and
the next one deletes what there is of it. What is done to jobs (cancel, hold, release, update) is judged for
all of them first, then noted as an intent in one commit, then done part by part; the next daemon goes on
with it. Both are answered when all of it is durable. Users take turns, part by part (`daemon.loop.turns`).
A request whose client hung up is given up as long as nothing is settled: the submission is not closed, the
intent not noted.
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
from gflow.daemon.loop.commands import Command, Meaning, Submitting, hidden_among, parents_of
from gflow.daemon.loop.turns import Turns
from gflow.errors import GflowError, UsageError
from gflow.fault_points import point
from gflow.store.bulk import Bulk, Intent, OpenSubmission, keys_of, runs_of
from gflow.store.port import Changes, Store, Submission, neighbours
from gflow.wire.requests import Described

log = logging.getLogger("gflow.bulk")


class Loop(Protocol):
    """What bulk work needs of the event loop (`daemon.loop.loop.Loop`)."""

    state: State
    turns: Turns
    # Numbers of intents that are being carried out.
    busy: set[int]
    read_only: str

    async def wish(self, wish: Command) -> Any: ...
    def post(self, make: Callable[[Moment], Event]) -> None: ...
    def arrival(self, first: int) -> asyncio.Future[None]: ...
    def forget_arrival(self, first: int) -> None: ...
    def next_intent(self) -> int: ...


# Whose turn it is when jobs arrive.
ARRIVALS = -1
# Jobs of a submission that was refused are deleted so many at a time.
DELETED = 20 * PART
DEEDS: dict[str, type[UserAction]] = {"cancel": Cancel, "hold": Hold, "release": Release, "update": Update}
_KINDS = {type_: kind for kind, type_ in DEEDS.items()}
_SPEC_TYPES = {field.name: field.type for field in msgspec.structs.fields(Spec)}


# ---------------------------------------------------------------- submissions


class Taking:
    """A submission in parts, and what its parts have in common."""

    def __init__(self, wish: Submitting) -> None:
        self.uid, self.user, self.token, self.origin = wish.uid, wish.user, wish.token, wish.origin
        self.count, self.first, self.staged = wish.count, 0, 0
        # Each is let go as it is made a job.
        self._left = deque(wish.jobs)
        self.projects = wish.projects
        self._relative = wish.relative
        self._hides, self._rights = wish.hides, wish.rights
        self._meant = Meaning(wish.uid)
        # How parents ended: that never changes.
        self._ended: dict[JobKey, JobState] = {}
        self._last: Spec | None = None

    @property
    def keys(self) -> tuple[JobKey, ...]:
        return neighbours(job_key(self.first), self.count)

    def resolve(self, state: State) -> None:
        """What `@` means is what it means now, for all parts."""
        self._meant.settle(state, self._relative)

    def next_part(self) -> list[Described]:
        return [self._left.popleft() for _ in range(min(PART, len(self._left)))]

    def specs(self, part: list[Described], state: State) -> tuple[Spec, ...]:
        """The specs of a part, parents and group filled in. Equal neighbours become one object."""
        made: list[Spec] = []
        for job in part:
            spec, (all_of, any_of) = job.spec, job.references
            more: dict[str, Any] = {}
            if all_of or any_of:
                keys = self._meant.keys
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
        """Parents that the submitter is not to know of."""
        return hidden_among(parents_of(specs), self._hides)

    def outcomes(self, state: State, store: Store, specs: Sequence[Spec]) -> dict[JobKey, JobState]:
        gone = {key for key in parents_of(specs) if not state.is_active(key)}
        self._ended |= store.outcomes(gone - self._ended.keys())
        return self._ended

    def record(self, *, closed: bool = False) -> OpenSubmission:
        return OpenSubmission(self.first, self.count, self.uid, self.origin, closed)


class _Opening:
    """Reserve what a submission needs."""

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

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        self._taking.first = next(effect.first for effect in effects if isinstance(effect, Reserved))
        changes.bulk[self._taking.first] = self._taking.record()


class _Staging:
    """Make some jobs of a submission."""

    def __init__(self, taking: Taking, part: list[Described]) -> None:
        self.origin = taking.origin
        self._taking = taking
        self._part = part

    def event(self, state: State, store: Store, at: Moment) -> Event:
        specs = self._taking.specs(self._part, state)
        outcomes = self._taking.outcomes(state, store, specs)
        hidden = self._taking.hidden(specs)
        return Stage(at=at, first=self._taking.first, specs=specs, outcomes=outcomes, hidden=hidden)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        for job in self._part:
            changes.blobs.update(job.blobs)
        self._taking.staged += len(self._part)


class _Closing:
    """Make them jobs like all others."""

    def __init__(self, taking: Taking) -> None:
        self.origin = taking.origin
        self._taking = taking

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Close(at=at, uid=self._taking.uid, first=self._taking.first)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        taking = self._taking
        assert any(isinstance(effect, Closed) for effect in effects)
        changes.submissions.append(Submission(taking.uid, taking.token, taking.keys, at.wall))
        changes.bulk[taking.first] = taking.record(closed=True)


class _Abandoning:
    """Forget them; the jobs that there were, to be let go of a few at a time."""

    origin = "daemon"

    def __init__(self, first: int) -> None:
        self._first = first

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Abandon(at=at, first=self._first) if self._first in state.open else Tick(at=at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> dict[JobKey, Any]:
        return next((effect.jobs for effect in effects if isinstance(effect, Abandoned)), {})


class _Deleting:
    """Delete hidden jobs from the disk; with the last of them, that there was a submission."""

    origin = "daemon"

    def __init__(self, first: int, span: tuple[JobKey, JobKey] | None) -> None:
        self._first = first
        self._span = span

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        if self._span is not None:
            changes.discarded.append(self._span)
        else:
            changes.bulk[self._first] = None


class _Arriving:
    """Put some jobs where they wait: those of a submission, or (0) whoever is first."""

    origin = "daemon"

    def __init__(self, first: int) -> None:
        self._first = first

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Arrive(at=at, most=PART, first=self._first)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        return None


def check_wanted(request: Submitting | Wanted) -> None:
    """Go no further with what nobody waits for."""
    if request.is_dropped:
        raise UsageError("the client hung up")


async def submit(loop: Loop, wish: Submitting) -> tuple[JobKey, ...]:
    """Take a submission in parts: all of it, or nothing and the reason why."""
    taking = Taking(wish)
    wish.jobs = []
    async with loop.turns.of(wish.uid):
        check_wanted(wish)
        await loop.wish(_Opening(taking))
    point("bulk.opened")
    try:
        while part := taking.next_part():
            async with loop.turns.of(wish.uid):
                check_wanted(wish)
                await loop.wish(_Staging(taking, part))
            point("bulk.staged")
        arrived = loop.arrival(taking.first)
        async with loop.turns.of(wish.uid):
            check_wanted(wish)
            await loop.wish(_Closing(taking))
    except GflowError:
        await _give_up(loop, taking)
        raise
    point("bulk.closed")
    await arrived
    return taking.keys


async def _give_up(loop: Loop, taking: Taking) -> None:
    """Leave nothing of a submission. What cannot be deleted now is hidden, and deleted when it can be."""
    loop.forget_arrival(taking.first)
    try:
        jobs = await loop.wish(_Abandoning(taking.first))
        for start in range(0, taking.staged, DELETED):
            last = min(start + DELETED, taking.staged) - 1
            async with loop.turns.of(taking.uid):
                span = job_key(taking.first + start), job_key(taking.first + last)
                await loop.wish(_Deleting(taking.first, span))
                for _ in range(min(DELETED, len(jobs))):
                    jobs.popitem()
        await loop.wish(_Deleting(taking.first, None))
    except GflowError as error:
        log.warning("submission %d was refused, and is deleted later: %s", taking.first, error)


async def see_in(loop: Loop) -> None:
    """Let all arrive who are to; users take turns, and whoever is first has one too."""
    uid = ARRIVALS
    while loop.state.arriving:
        async with loop.turns.of(ARRIVALS):
            closed = {one.uid: one.first for one in reversed(loop.state.open.values()) if one.is_closed}
            uid = min((other for other in closed if other > uid), default=ARRIVALS)
            await loop.wish(_Arriving(closed.get(uid, 0)))
        point("bulk.arrived")


# ---------------------------------------------------------------- what is done to jobs


class _Claiming:
    """Judge what is to be done to some of the jobs."""

    def __init__(self, deed: Wanted, keys: tuple[JobKey, ...], weight: tuple[int, int]) -> None:
        self.origin = deed.origin
        self._deed, self._keys, self._weight = deed, keys, weight

    def event(self, state: State, store: Store, at: Moment) -> Event:
        size, links = self._weight
        return Claim(at=at, action=self._deed.event(self._keys, state, store, at), size=size, links=links)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> tuple[int, int]:
        return next((effect.size, effect.links) for effect in effects if isinstance(effect, Claimed))


class Wanted:
    """What is to be done to many jobs: an event without its keys, and texts that it brings."""

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
        # Whether the client hung up.
        self.is_dropped = False

    @classmethod
    def of(cls, intent: Intent) -> Wanted:
        """What an earlier daemon has begun."""
        kind, more = DEEDS[intent.kind], dict(intent.fields)
        if kind is Update:
            more["fields"] = {
                name: msgspec.convert(value, _SPEC_TYPES[name]) for name, value in more["fields"].items()
            }
        return cls(kind, intent.uid, intent.origin, governs=intent.governs, **more)

    def to(self, keys: tuple[JobKey, ...]) -> Doing:
        """This done to these jobs."""
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
    """Note what is to be done, before any of it is."""

    def __init__(self, deed: Wanted, number: int, intent: Intent) -> None:
        self.origin = deed.origin
        self._deed, self._number, self._intent = deed, number, intent

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.bulk[self._number] = self._intent
        changes.blobs.update(self._deed.blobs)


class Doing:
    """Do it to these jobs; in parts, to those that have not ended meanwhile."""

    def __init__(
        self, deed: Wanted, keys: tuple[JobKey, ...], progress: dict[int, int] | None = None
    ) -> None:
        self.origin = deed.origin
        self._deed, self._keys = deed, keys
        # In parts: the number of the intent, and how far it is then.
        self._progress = progress

    def event(self, state: State, store: Store, at: Moment) -> Event:
        keys = self._keys
        if self._progress is not None:
            keys = tuple(key for key in keys if state.is_active(key))
        return self._deed.event(keys, state, store, at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.blobs.update(self._deed.blobs)
        changes.progress.update(self._progress or {})


class _Done:
    """All of it is done."""

    origin = "daemon"

    def __init__(self, number: int, keys: tuple[JobKey, ...]) -> None:
        self._number, self._keys = number, keys

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Unclaim(at=at, keys=self._keys)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.bulk[self._number] = None


async def do(loop: Loop, deed: Wanted, keys: Sequence[JobKey]) -> None:
    """Do this to all of these jobs, or refuse to do anything."""
    weight = 0, 0
    claimed: list[JobKey] = []
    intent, number = deed.intent(keys), loop.next_intent()
    try:
        for part in _parts(keys):
            async with loop.turns.of(deed.uid):
                check_wanted(deed)
                weight = await loop.wish(_Claiming(deed, part, weight))
                claimed += part
        loop.busy.add(number)
        async with loop.turns.of(deed.uid):
            check_wanted(deed)
            await loop.wish(_Intending(deed, number, intent))
    except GflowError:
        loop.busy.discard(number)
        if claimed:
            loop.post(lambda at: Unclaim(at=at, keys=tuple(claimed)))
        raise
    point("bulk.intended")
    await carry_out(loop, number, deed, keys)


async def carry_out(loop: Loop, number: int, deed: Wanted, keys: Sequence[JobKey], done: int = 0) -> None:
    """Do what has been noted, also if an earlier daemon began with it; `done`: to so many it has been."""
    loop.busy.add(number)
    try:
        for part in _parts(keys[done:]):
            done += len(part)
            async with loop.turns.of(deed.uid):
                await _do_part(loop, deed, part, {number: done})
            point("bulk.done-part")
        await loop.wish(_Done(number, tuple(keys)))
        point("bulk.done")
    finally:
        loop.busy.discard(number)


async def _do_part(loop: Loop, deed: Wanted, part: tuple[JobKey, ...], progress: dict[int, int]) -> None:
    """Jobs to which it cannot be done any more, because of what happened meanwhile, are left as they are."""
    try:
        await loop.wish(Doing(deed, part, progress))
    except GflowError as error:
        if loop.read_only:
            raise  # the intent is durable: it goes on when the disk can be written again
        ((number, done),) = progress.items()
        for place, key in enumerate(part, done - len(part) + 1):
            try:
                await loop.wish(Doing(deed, (key,), {number: place}))
            except GflowError:
                log.info("job %d was left alone: %s", key, error)
                loop.post(lambda at, key=key: Unclaim(at=at, keys=(key,)))  # type: ignore[misc]


def _parts(keys: Sequence[JobKey]) -> Iterator[tuple[JobKey, ...]]:
    iterator = iter(keys)
    while part := tuple(islice(iterator, PART)):
        yield part


# ---------------------------------------------------------------- after a daemon that did not come to the end


def claimed_by(bulk: dict[int, Bulk]) -> set[JobKey]:
    """The jobs to which something is to be done."""
    found: set[JobKey] = set()
    for one in bulk.values():
        if isinstance(one, Intent) and DEEDS[one.kind] is not Release:
            found.update(islice(keys_of(one.keys), one.done, None))
    return found


def recovered(store: Store, busy: set[int]) -> Changes:
    """What brings the store in order: open submissions are rolled back, stories of closed ones told.

    `busy`: those that this daemon is at.
    """
    changes = Changes()
    for number, bulk in store.unfinished().items():
        if number in busy or not isinstance(bulk, OpenSubmission):
            continue
        changes.bulk[number] = None
        if bulk.closed:
            lines = store.unheard(bulk)
            changes.audit += [
                AuditEntry(at, key, bulk.uid, bulk.origin, "submitted", "") for key, at in lines
            ]
        else:
            changes.discarded.append(bulk.span)
    return changes


async def resume(loop: Loop, number: int, intent: Intent) -> None:
    """Go on with what an earlier daemon began."""
    try:
        await carry_out(loop, number, Wanted.of(intent), list(keys_of(intent.keys)), intent.done)
    except GflowError as error:
        log.warning("a %s of many jobs is not finished yet: %s", intent.kind, error)
