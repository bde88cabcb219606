"""What wants to happen in the next turn of the loop, and what each adds to the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from gflow.core.effects import Accepted, Effect
from gflow.core.engine import resolve
from gflow.core.events import Event, Submit, Update
from gflow.core.ids import JobKey
from gflow.core.model import JobState, Moment, Spec
from gflow.core.state import State
from gflow.store.port import Changes, Store, Submission
from gflow.wire.requests import Described, References


class Wish(Protocol):
    """Becomes an event at the last moment, so that it speaks of the state it meets."""

    origin: str

    def event(self, state: State, store: Store, at: Moment) -> Event: ...

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        """Called after the step: add to the commit, return the answer."""


class Plain:
    """A wish that is just an event."""

    def __init__(self, make: Callable[[Moment], Event], origin: str = "daemon") -> None:
        self._make = make
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return self._make(at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        return None


class Submitting:
    """A submission: once per token, however often it is asked for."""

    def __init__(self, uid: int, user: str, token: str, jobs: list[Described], origin: str) -> None:
        self.uid = uid
        self.user = user
        self.token = token
        self.jobs = jobs
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        resolved = [_resolved(state, self.uid, job.spec, job.references) for job in self.jobs]
        specs = _shared(_with_group(state, resolved))
        outcomes = outcomes_of(state, store, specs)
        return Submit(at=at, uid=self.uid, user=self.user, specs=tuple(specs), outcomes=outcomes)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> tuple[JobKey, ...]:
        keys = next(effect.keys for effect in effects if isinstance(effect, Accepted))
        changes.submissions.append(Submission(self.uid, self.token, keys, at.wall))
        for job in self.jobs:
            changes.blobs.update(job.blobs)
        return keys


class Updating:
    """A change of what was asked for, with references that may name jobs as people do."""

    def __init__(
        self, uid: int, keys: tuple[JobKey, ...], fields: dict[str, Any], references: References, origin: str
    ) -> None:
        self.uid = uid
        self.keys = keys
        self.fields = fields
        self.references = references
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        fields = dict(self.fields)
        for name, texts in zip(("depends_on", "depends_any"), self.references, strict=True):
            if texts:
                fields[name] = _keys(state, self.uid, texts)
        parents = {*fields.get("depends_on", ()), *fields.get("depends_any", ())}
        for job in (state.jobs.get(key) or state.array_with(key) for key in self.keys):
            parents.update(job.spec.parents if job else ())  # those it keeps are judged anew too
        outcomes = store.outcomes(key for key in parents if not state.is_active(key))
        return Update(at=at, uid=self.uid, keys=self.keys, fields=fields, outcomes=outcomes)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        return None


def outcomes_of(state: State, store: Store, specs: list[Spec]) -> dict[JobKey, JobState]:
    """How those parents ended that the engine does not know any more."""
    parents = {key for spec in specs for key in spec.parents}
    return store.outcomes(key for key in parents if not state.is_active(key))


def _resolved(state: State, uid: int, spec: Spec, references: References) -> Spec:
    if not (references.all_of or references.any_of):
        return spec
    return msgspec.structs.replace(
        spec,
        depends_on=_keys(state, uid, references.all_of),
        depends_any=_keys(state, uid, references.any_of),
    )


def _keys(state: State, uid: int, texts: tuple[str, ...]) -> tuple[JobKey, ...]:
    return tuple(dict.fromkeys(resolve(state, uid, text) for text in texts))


def _with_group(state: State, specs: list[Spec]) -> list[Spec]:
    """Jobs submitted together under --max-concurrent are one group, named by the first one's number."""
    group = state.next_number
    return [
        msgspec.structs.replace(spec, group=group) if spec.max_concurrent and not spec.array else spec
        for spec in specs
    ]


def _shared(specs: list[Spec]) -> list[Spec]:
    """Equal neighbours become one object: ten thousand jobs of one kind cost little more than one."""
    shared: list[Spec] = []
    for spec in specs:
        shared.append(shared[-1] if shared and shared[-1] == spec else spec)
    return shared
