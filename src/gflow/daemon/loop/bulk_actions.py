"""A user action on more than PART jobs, in parts: claim the jobs, record the intent, then change them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from gflow.core.effects import Claimed, Effect
from gflow.core.events import Cancel, Claim, Event, Hold, Release, Tick, Unclaim, Update, UserAction
from gflow.core.ids import JobKey
from gflow.core.key_table import KeySet
from gflow.core.model import Moment, Spec
from gflow.core.state.state import PART, State
from gflow.daemon.loop.bulk import Loop, check_connected
from gflow.daemon.loop.commands import named_parents, parents_of
from gflow.daemon.loop.cooperative import MANY, in_slices
from gflow.errors import GflowError
from gflow.fault_points import point
from gflow.store.bulk import Bulk, Intent, Run, keys_of, runs_of
from gflow.store.port import Changes, Store

log = logging.getLogger("gflow.bulk")
ACTIONS: dict[str, type[UserAction]] = {"cancel": Cancel, "hold": Hold, "release": Release, "update": Update}
_KINDS = {type_: kind for kind, type_ in ACTIONS.items()}
_SPEC_TYPES = {field.name: field.type for field in msgspec.structs.fields(Spec)}


class _ClaimCommand:
    """Check an action for one part of the jobs, and claim them for it."""

    def __init__(self, action: BulkAction, keys: tuple[JobKey, ...], weight: tuple[int, int]) -> None:
        self.origin = action.origin
        self._action, self._keys, self._weight = action, keys, weight

    def event(self, state: State, store: Store, at: Moment) -> Event:
        size, links = self._weight
        return Claim(at=at, action=self._action.event(self._keys, state, store, at), size=size, links=links)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> tuple[int, int]:
        return next((effect.size, effect.links) for effect in effects if isinstance(effect, Claimed))


class BulkAction:
    """A user action on many jobs: its event without the keys, and the blobs that it refers to."""

    def __init__(
        self,
        kind: type[UserAction],
        uid: int,
        origin: str,
        *,
        is_operator: bool,
        blobs: dict[str, bytes] | None = None,
        **more: Any,
    ) -> None:
        self.kind, self.uid, self.origin, self.is_operator = kind, uid, origin, is_operator
        self.more = more
        self.blobs = blobs or {}
        # Whether the client disconnected.
        self.is_dropped = False

    @classmethod
    def of(cls, intent: Intent) -> BulkAction:
        """The action of a stored intent."""
        kind, more = ACTIONS[intent.kind], dict(intent.fields)
        if kind is Update:
            more["fields"] = {
                name: msgspec.convert(value, _SPEC_TYPES[name]) for name, value in more["fields"].items()
            }
        return cls(kind, intent.uid, intent.origin, is_operator=intent.governs, **more)

    def to(self, keys: tuple[JobKey, ...]) -> ApplyCommand:
        """A command that applies this action to these jobs."""
        return ApplyCommand(self, keys)

    async def intent(self, keys: Sequence[JobKey]) -> Intent:
        kind, runs = _KINDS[self.kind], list[Run]()
        async for some in in_slices(keys, MANY):
            runs += runs_of(some)
        return Intent(kind, self.uid, self.is_operator, self.origin, tuple(runs), self.more)

    def event(self, keys: tuple[JobKey, ...], state: State, store: Store, at: Moment) -> UserAction:
        more: dict[str, Any] = {}
        if self.kind is Update:
            changed = self.more["fields"]
            parents = named_parents(changed)
            jobs = filter(None, (state.jobs.get(key) for key in keys))
            parents |= parents_of(job.spec for job in jobs)
            more["outcomes"] = store.outcomes(key for key in parents if not state.jobs.is_active(key))
        return self.kind(at=at, uid=self.uid, is_operator=self.is_operator, keys=keys, **self.more, **more)


class _IntentCommand:
    """Record the intent, before any job is changed."""

    def __init__(self, action: BulkAction, number: int, intent: Intent) -> None:
        self.origin = action.origin
        self._action, self._number, self._intent = action, number, intent

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.bulk[self._number] = self._intent
        changes.blobs.update(self._action.blobs)


class ApplyCommand:
    """Apply an action to these jobs; as part of an intent, to those that have not ended meanwhile."""

    def __init__(
        self, action: BulkAction, keys: tuple[JobKey, ...], progress: dict[int, int] | None = None
    ) -> None:
        self.origin = action.origin
        self._action, self._keys = action, keys
        # As part of an intent: its number, and how many jobs are done after this part.
        self._progress = progress

    def event(self, state: State, store: Store, at: Moment) -> Event:
        keys = self._keys
        if self._progress is not None:
            keys = tuple(key for key in keys if state.jobs.is_active(key))
        return self._action.event(keys, state, store, at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.blobs.update(self._action.blobs)
        changes.progress.update(self._progress or {})


class _FinishCommand:
    """Delete a finished intent, and release the claim on its jobs."""

    origin = "daemon"

    def __init__(self, number: int, keys: tuple[JobKey, ...]) -> None:
        self._number, self._keys = number, keys

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Unclaim(at=at, keys=self._keys)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.bulk[self._number] = None


async def apply_action(loop: Loop, action: BulkAction, keys: Sequence[JobKey]) -> None:
    """Apply an action to all of these jobs; if it is refused for one of them, to none."""
    weight = 0, 0
    claimed = 0
    intent, number = await action.intent(keys), loop.next_intent()
    try:
        for part in _parts(keys):
            async with loop.turns.of(action.uid):
                check_connected(action)
                weight = await loop.run_command(_ClaimCommand(action, part, weight))
                claimed += len(part)
        loop.busy.add(number)
        async with loop.turns.of(action.uid):
            check_connected(action)
            await loop.run_command(_IntentCommand(action, number, intent))
    except GflowError:
        loop.busy.discard(number)
        for part in _parts(keys[:claimed], MANY):
            _drop_claims(loop, part)
        raise
    point("bulk.intended")
    await apply_intent(loop, number, action, keys)


async def apply_intent(
    loop: Loop, number: int, action: BulkAction, keys: Sequence[JobKey], done: int = 0
) -> None:
    """Apply a recorded intent part by part, beginning after the first `done` jobs."""
    loop.busy.add(number)
    try:
        for part in _parts(keys[done:]):
            done += len(part)
            async with loop.turns.of(action.uid):
                await _apply_part(loop, action, part, {number: done})
            point("bulk.done-part")
        # Each part has dropped its claims, except those on jobs that had ended.
        left: list[JobKey] = []
        async for some in in_slices(keys, MANY):
            state = loop.state
            left += [key for key in some if key in state.claimed and not state.jobs.is_active(key)]
        await loop.run_command(_FinishCommand(number, tuple(left)))
        point("bulk.done")
    finally:
        loop.busy.discard(number)


async def _apply_part(
    loop: Loop, action: BulkAction, part: tuple[JobKey, ...], progress: dict[int, int]
) -> None:
    """Apply an action to one part. Jobs that have changed so that it is refused are left unchanged."""
    try:
        await loop.run_command(ApplyCommand(action, part, progress))
    except GflowError as error:
        if loop.read_only:
            raise  # the intent is durable: it continues when the disk can be written again
        ((number, done),) = progress.items()
        for position, key in enumerate(part, done - len(part) + 1):
            try:
                await loop.run_command(ApplyCommand(action, (key,), {number: position}))
            except GflowError:
                log.info("job %d was left unchanged: %s", key, error)
                _drop_claims(loop, (key,))


def _drop_claims(loop: Loop, keys: tuple[JobKey, ...]) -> None:
    loop.post(lambda at: Unclaim(at=at, keys=keys))


def _parts(keys: Sequence[JobKey], size: int = PART) -> Iterator[tuple[JobKey, ...]]:
    iterator = iter(keys)
    while part := tuple(islice(iterator, size)):
        yield part


async def resume(loop: Loop, number: int, intent: Intent) -> None:
    """Continue an intent that an earlier daemon recorded."""
    try:
        await apply_intent(loop, number, BulkAction.of(intent), list(keys_of(intent.keys)), intent.done)
    except GflowError as error:
        log.warning("a %s of many jobs is not finished yet: %s", intent.kind, error)


def claimed_by(bulk: dict[int, Bulk]) -> KeySet:
    """The jobs that unfinished intents still have to change."""
    found = KeySet()
    for one in bulk.values():
        if isinstance(one, Intent) and ACTIONS[one.kind] is not Release:
            found.update(islice(keys_of(one.keys), one.done, None))
    return found
