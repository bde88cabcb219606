"""What wants to happen in the next turn of the loop, and what each adds to the commit.

Doing a job again, as a new one; if wanted, with those that were cancelled because it failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from graphlib import TopologicalSorter
from typing import Any, Protocol

import msgspec

from gflow.core.effects import Accepted, Effect
from gflow.core.events import Event, Submit, Tick, Update
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.job_reference import resolve
from gflow.core.lifecycle.update import override_spec
from gflow.core.model import AuditEntry, Job, JobState, Moment, Spec
from gflow.core.state.state import State
from gflow.daemon.auth.submission_rules import Rights
from gflow.errors import Forbidden, NotFound, Refused, StoreError
from gflow.store.port import Changes, Store, Submission
from gflow.wire.requests import Described, References
from gflow.wire.update import Change

Parents = tuple[JobKey, ...]
# Whether there is a job of this key that the caller is not to know of.
Hides = Callable[[JobKey], bool]


class Command(Protocol):
    """Becomes an event at the last moment, so that it speaks of the state it meets."""

    origin: str

    def event(self, state: State, store: Store, at: Moment) -> Event: ...

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        """Called after the step: add to the commit, return the answer."""


class EventCommand:
    """A wish that is just an event."""

    def __init__(self, make: Callable[[Moment], Event], origin: str = "daemon") -> None:
        self._make = make
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return self._make(at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        return None


class AuditCommand:
    """A line of the audit that is about no job: what the daemon did, or somebody (`uid`) to the machine."""

    def __init__(self, what: str, detail: str, uid: int | None = None, origin: str = "daemon") -> None:
        self._what = what
        self._detail = detail
        self._uid = uid
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.audit.append(AuditEntry(at.wall, None, self._uid, self.origin, self._what, self._detail))


class MetaCommand:
    """Values of the daemon's own that must survive it."""

    origin = "daemon"

    def __init__(self, values: dict[str, str | int]) -> None:
        self._values = values

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.meta.update(self._values)


class Submitting:
    """A submission: once per token, however often it is asked for."""

    def __init__(
        self,
        uid: int,
        user: str,
        token: str,
        jobs: list[Described],
        origin: str,
        *,
        hides: Hides | None = None,
        rights: Rights | None = None,
    ) -> None:
        self.hides = hides
        self.rights = rights
        self.uid = uid
        self.user = user
        self.token = token
        self.jobs: list[Described] = []
        self.origin = origin
        # Whether nobody waits for it any more.
        self.is_dropped = False
        # How many jobs there are, and each project gets; parents that are named by what was submitted last.
        self.count = 0
        self.projects: Counter[str] = Counter()
        self.relative: set[str] = set()
        self.add(jobs)

    def add(self, jobs: list[Described]) -> None:
        """More jobs of the same submission."""
        self.jobs += jobs
        self.count_in(jobs)

    def count_in(self, jobs: list[Described]) -> None:
        """The same without keeping them."""
        self.count += len(jobs)
        for job in jobs:
            if job.spec.project:
                self.projects[job.spec.project] += 1
            for texts in job.references:
                self.relative.update(text for text in texts if text.startswith("@"))

    def event(self, state: State, store: Store, at: Moment) -> Event:
        meant = Meaning(self.uid)
        resolved = [_resolved(state, job.spec, job.references, meant) for job in self.jobs]
        groups = in_groups(state, resolved, [job.is_of_sweep for job in self.jobs])
        return self.submit(state, store, _shared(groups), at)

    def submit(self, state: State, store: Store, specs: list[Spec], at: Moment) -> Submit:
        """The event for these specs, unless the submitter may not ask for them."""
        if self.rights is not None:
            self.rights.check_specs(specs)
        parents = parents_of(specs)
        return Submit(
            at=at,
            uid=self.uid,
            user=self.user,
            specs=tuple(specs),
            outcomes=outcomes_of(state, store, parents),
            hidden=hidden_among(parents, self.hides),
        )

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> tuple[JobKey, ...]:
        keys = next(effect.keys for effect in effects if isinstance(effect, Accepted))
        changes.submissions.append(Submission(self.uid, self.token, keys, at.wall))
        for job in self.jobs:
            changes.blobs.update(job.blobs)
        return keys


class Updating:
    """A change of what was asked for, with references that may name jobs as people do."""

    def __init__(
        self,
        uid: int,
        keys: tuple[JobKey, ...],
        change: Change,
        origin: str,
        *,
        governs: bool = False,
        hides: Hides | None = None,
        rights: Rights | None = None,
    ) -> None:
        self.hides = hides
        self.rights = rights
        self.uid = uid
        self.governs = governs
        self.keys = keys
        self.change = change
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        if self.rights is not None:
            self.rights.check(self.change.fields)
        fields = resolved_fields(state, self.uid, self.change)
        parents = {*fields.get("depends_on", ()), *fields.get("depends_any", ())}
        hidden = hidden_among(parents, self.hides)
        jobs = filter(None, (state.jobs.get(key) or state.array_with(key) for key in self.keys))
        parents |= parents_of(job.spec for job in jobs)  # those it keeps are judged anew too
        outcomes = outcomes_of(state, store, parents)
        return Update(
            at=at,
            uid=self.uid,
            governs=self.governs,
            keys=self.keys,
            fields=fields,
            outcomes=outcomes,
            hidden=hidden,
            extend_s=self.change.extend_s,
        )

    def took(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        changes.blobs.update(self.change.blobs)
        return None


def resolved_fields(state: State, uid: int, change: Change) -> dict[str, Any]:
    """Fields of a spec that change, with the parents that are meant now."""
    fields = dict(change.fields)
    for name, texts in zip(("depends_on", "depends_any"), change.references, strict=True):
        if texts:
            fields[name] = resolved_keys(state, uid, texts)
    return fields


def hidden_among(parents: set[JobKey], hides: Hides | None) -> frozenset[JobKey]:
    """Those of these jobs that the caller is not to know of."""
    return frozenset(filter(hides, parents)) if hides is not None else frozenset()


def outcomes_of(state: State, store: Store, parents: set[JobKey]) -> dict[JobKey, JobState]:
    """How those parents ended that the engine does not know any more."""
    return store.outcomes(key for key in parents if not state.is_active(key))


def parents_of(specs: Iterable[Spec]) -> set[JobKey]:
    """All parents that these name; a tuple that many share is looked at once."""
    distinct = {id(keys): keys for spec in specs for keys in (spec.depends_on, spec.depends_any) if keys}
    return {key for keys in distinct.values() for key in keys}


def _resolved(state: State, spec: Spec, references: References, meant: Meaning) -> Spec:
    all_of, any_of = references
    if not (all_of or any_of):
        return spec
    return msgspec.structs.replace(
        spec, depends_on=meant.keys(state, all_of), depends_any=meant.keys(state, any_of)
    )


class Meaning:
    """Which jobs texts mean when one person says them. Each list of texts is looked up once.

    Jobs that name their parents alike so get one tuple of them, and share what they wait for.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        # What `@` and the like mean, where that is settled; lists by identity and by content.
        self._meant: dict[str, JobKey] = {}
        self._objects: dict[int, tuple[tuple[str, ...], Parents]] = {}
        self._found: dict[tuple[str, ...], Parents] = {}

    def settle(self, state: State, texts: Iterable[str]) -> None:
        """These mean what they mean now, also later."""
        new = (text for text in texts if text not in self._meant)
        self._meant.update({text: resolve(state, self._uid, text) for text in new})

    def keys(self, state: State, texts: tuple[str, ...]) -> Parents:
        known = self._objects.get(id(texts))
        if known is None:
            keys = self._found.get(texts)
            if keys is None:
                each = (self._meant.get(text) or resolve(state, self._uid, text) for text in texts)
                keys = self._found[texts] = tuple(dict.fromkeys(each))
            known = self._objects[id(texts)] = texts, keys
        return known[1]


def resolved_keys(state: State, uid: int, texts: tuple[str, ...]) -> tuple[JobKey, ...]:
    return tuple(dict.fromkeys(resolve(state, uid, text) for text in texts))


def in_groups(state: State, specs: list[Spec], of_sweep: Sequence[bool] = ()) -> list[Spec]:
    """Jobs submitted as a sweep or under --max-concurrent are one group, named by the first one's number."""
    group = state.next_number
    return [
        msgspec.structs.replace(spec, group=group)
        if (spec.max_concurrent and not spec.array) or swept
        else spec
        for spec, swept in zip(specs, of_sweep or [False] * len(specs), strict=True)
    ]


def _shared(specs: list[Spec]) -> list[Spec]:
    """Equal neighbours become one object: ten thousand jobs of one kind cost little more than one."""
    shared: list[Spec] = []
    for spec in specs:
        shared.append(shared[-1] if shared and shared[-1] == spec else spec)
    return shared


class Redoing(Submitting):
    """A submission whose specs are those of jobs there were."""

    def __init__(
        self,
        uid: int,
        user: str,
        token: str,
        key: JobKey,
        change: Change,
        *,
        clear_deps: bool,
        cascade: bool,
        origin: str,
        hides: Hides | None = None,
        rights: Rights | None = None,
        keep: Callable[[list[Spec]], None] = lambda specs: None,
    ) -> None:
        super().__init__(uid, user, token, [], origin, hides=hides, rights=rights)
        self._key = key
        self._change = change
        self._clear_deps = clear_deps
        self._cascade = cascade
        # Counts what the specs take, or refuses them.
        self._keep = keep
        # What the caller is told besides; empty: nothing.
        self.note = ""

    def event(self, state: State, store: Store, at: Moment) -> Event:
        jobs = self._jobs(state, store)
        new = {job.key: state.next_number + index for index, job in enumerate(jobs)}
        specs = [self._capped(_again(store, job, new)) for job in jobs]
        specs[0] = self._overridden(state, jobs[0], specs[0])
        self._keep(specs)
        return self.submit(state, store, in_groups(state, specs), at)

    def _capped(self, spec: Spec) -> Spec:
        """A priority that an operator gave is not for a new job, and no reason to refuse it."""
        capped = self.rights.capped(spec) if self.rights is not None else spec
        if capped is not spec and "priority" not in self._change.fields:
            most = capped.priority
            self.note = f"priority {spec.priority} became {most}, the highest that users may ask for here"
        return capped

    def _jobs(self, state: State, store: Store) -> list[Job]:
        """The job, then whoever was cancelled because of it; parents before children."""
        root = state.jobs.get(self._key) or store.job(self._key)
        if root is None:
            raise NotFound()
        if self.uid not in (root.uid, 0):
            raise Forbidden(f"job {root.label} belongs to {root.user}")
        found = {root.key: root}
        line = [root] if self._cascade else []
        while line:
            for job in store.cut_off_by(line.pop().key):
                # Somebody else's job that waited for it is theirs to redo: it would run as whoever asks.
                if job.key not in found and (job.uid, job.user) == (root.uid, root.user):
                    found[job.key] = job
                    line.append(job)
        return [root] + [found[key] for key in _in_order(found) if key != root.key]

    def _overridden(self, state: State, job: Job, spec: Spec) -> Spec:
        """What the caller wants to be different this time."""
        fields: dict[str, Any] = dict(self._change.fields)
        if self._clear_deps:
            spec = msgspec.structs.replace(spec, depends_on=(), depends_any=())
        for name, texts in self._change.references._asdict().items():
            if texts:
                fields[FIELDS[name]] = resolved_keys(state, self.uid, texts)
        return override_spec(job, spec, fields, self._change.extend_s)


FIELDS = {"all_of": "depends_on", "any_of": "depends_any"}


def _in_order(found: dict[JobKey, Job]) -> list[JobKey]:
    graph: dict[JobKey, list[JobKey]] = {
        key: [whose for parent in job.spec.parents if (whose := _among(parent, found)) is not None]
        for key, job in found.items()
    }
    return list(TopologicalSorter(graph).static_order())


def _among(parent: JobKey, found: dict[JobKey, Any]) -> JobKey | None:
    """The job of `found` that this parent is, or is a task of."""
    whole = job_key(number_of(parent))
    return parent if parent in found else whole if whole in found else None


def _again(store: Store, job: Job, new: dict[JobKey, int]) -> Spec:
    """The spec of a job for another time: now, without its hold, and with parents that are redone too."""
    spec = job.spec
    try:
        for address in filter(None, (spec.environ, spec.script)):
            store.blob(address)
    except StoreError:
        raise Refused(f"the environment or script of job {job.label} is not kept any more") from None

    def moved(parents: tuple[JobKey, ...]) -> tuple[JobKey, ...]:
        return tuple(_moved(parent, new) for parent in parents)

    return msgspec.structs.replace(
        spec,
        array=spec.array if job.task is None else str(job.task),
        group=0,
        hold=False,
        begin_at=0.0,
        redone_from=job.key,
        depends_on=moved(spec.depends_on),
        depends_any=moved(spec.depends_any),
    )


def _moved(parent: JobKey, new: dict[JobKey, int]) -> JobKey:
    whose = _among(parent, new)
    return parent if whose is None else job_key(new[whose], task_of(parent))
