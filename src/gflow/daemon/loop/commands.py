"""Commands for the next turn of the loop: each makes an event, and adds to the commit after the step.

Submissions, updates, and redoing a job as a new one, on request with the jobs that were cancelled because
it failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from graphlib import TopologicalSorter
from typing import Any, Protocol

import msgspec

from gflow.core.effects import Accepted, Effect
from gflow.core.events import Event, Submit, Tick, Update
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.job_reference import resolve
from gflow.core.lifecycle.update import override_spec
from gflow.core.model import PARENT_FIELDS, AuditEntry, Job, JobState, Moment, Spec
from gflow.core.state.state import PART, State
from gflow.daemon.auth.submission_rules import Rights
from gflow.errors import Forbidden, NotFound, Refused, StoreError
from gflow.store.port import Changes, Store, Submission
from gflow.wire.requests import ParsedJob, References
from gflow.wire.update import Change

Parents = tuple[JobKey, ...]
# Whether there is a job with this key that the caller may not see.
Hides = Callable[[JobKey], bool]


class Command(Protocol):
    """Builds its event just before the step, so that it sees current state."""

    origin: str

    def event(self, state: State, store: Store, at: Moment) -> Event: ...

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        """Called after the step: add to the commit and return the answer."""


class EventCommand:
    """A command that is only an event."""

    def __init__(self, make: Callable[[Moment], Event], origin: str = "daemon") -> None:
        self._make = make
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return self._make(at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        return None


class AuditCommand:
    """Add an audit entry that is about no job: an act of the daemon, or of the user `uid` on the machine."""

    def __init__(self, what: str, detail: str, uid: int | None = None, origin: str = "daemon") -> None:
        self._what = what
        self._detail = detail
        self._uid = uid
        self.origin = origin

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.audit.append(AuditEntry(at.wall, None, self._uid, self.origin, self._what, self._detail))


class MetaCommand:
    """Store values of the daemon (table meta) that the next daemon needs."""

    origin = "daemon"

    def __init__(self, values: dict[str, str | int]) -> None:
        self._values = values

    def event(self, state: State, store: Store, at: Moment) -> Event:
        return Tick(at=at)

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> None:
        changes.meta.update(self._values)


class SubmitCommand:
    """Submit jobs. A repeated submission with the same token makes no further jobs."""

    def __init__(
        self,
        uid: int,
        user: str,
        token: str,
        jobs: list[ParsedJob],
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
        self.jobs: list[ParsedJob] = []
        self.origin = origin
        # Whether all clients that waited for it have disconnected.
        self.is_dropped = False
        self.count = 0
        # Number of jobs by project.
        self.projects: Counter[str] = Counter()
        # References to parents that are relative to the latest submission, such as `@`.
        self.relative: set[str] = set()
        self.add(jobs)

    def add(self, jobs: list[ParsedJob]) -> None:
        """Add jobs to the submission."""
        self.jobs += jobs
        self.count_in(jobs)

    def count_in(self, jobs: list[ParsedJob]) -> None:
        """Count jobs, their projects and relative references, without storing the jobs."""
        self.count += len(jobs)
        for job in jobs:
            if job.spec.project:
                self.projects[job.spec.project] += 1
            for texts in job.references:
                self.relative.update(text for text in texts if text.startswith("@"))

    def event(self, state: State, store: Store, at: Moment) -> Event:
        resolver = ReferenceResolver(self.uid)
        resolved = [_resolve_parents(state, job.spec, job.references, resolver) for job in self.jobs]
        grouped = set_groups(state, resolved, [job.is_of_sweep for job in self.jobs])
        return self.submit(state, store, _intern_neighbours(grouped), at)

    def submit(self, state: State, store: Store, specs: list[Spec], at: Moment) -> Submit:
        """The event for these specs; refused if the submitter may not ask for them."""
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

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> tuple[JobKey, ...]:
        keys = next(effect.keys for effect in effects if isinstance(effect, Accepted))
        changes.submissions.append(Submission(self.uid, self.token, keys, at.wall))
        for job in self.jobs:
            changes.blobs.update(job.blobs)
        return keys


class UpdateCommand(msgspec.Struct):
    """Change specs of jobs. References to parents may be relative (`@`)."""

    uid: int
    keys: tuple[JobKey, ...]
    change: Change
    origin: str
    is_operator: bool = False
    hides: Hides | None = None
    rights: Rights | None = None

    def event(self, state: State, store: Store, at: Moment) -> Event:
        if self.rights is not None:
            self.rights.check(self.change.fields)
        fields = resolved_fields(state, self.uid, self.change)
        parents = named_parents(fields)
        hidden = hidden_among(parents, self.hides)
        jobs = filter(None, (state.jobs.get(key) or state.jobs.array_with(key) for key in self.keys))
        parents |= parents_of(job.spec for job in jobs)  # parents that stay are checked again, too
        outcomes = outcomes_of(state, store, parents)
        return Update(
            at=at,
            uid=self.uid,
            is_operator=self.is_operator,
            keys=self.keys,
            fields=fields,
            outcomes=outcomes,
            hidden=hidden,
            extend_s=self.change.extend_s,
        )

    def after_step(self, effects: list[Effect], changes: Changes, at: Moment) -> Any:
        changes.blobs.update(self.change.blobs)
        return None


def resolved_fields(state: State, uid: int, change: Change) -> dict[str, Any]:
    """The fields of a spec that change, with references to parents resolved against the current state."""
    fields = dict(change.fields)
    for name, texts in zip(PARENT_FIELDS, change.references, strict=True):
        if texts:
            fields[name] = resolved_keys(state, uid, texts)
    return fields


def named_parents(fields: dict[str, Any]) -> set[JobKey]:
    """The parents that these fields of a spec name."""
    return {key for name in PARENT_FIELDS for key in fields.get(name, ())}


def hidden_among(parents: set[JobKey], hides: Hides | None) -> frozenset[JobKey]:
    """The parents that the caller may not see."""
    return frozenset(filter(hides, parents)) if hides is not None else frozenset()


def outcomes_of(state: State, store: Store, parents: set[JobKey]) -> dict[JobKey, JobState]:
    """The final states of the parents that are not active any more."""
    return store.outcomes(key for key in parents if not state.jobs.is_active(key))


def parents_of(specs: Iterable[Spec]) -> set[JobKey]:
    """All parents of these specs. A tuple that many specs share is processed once."""
    distinct = {spec.parents_id: spec for spec in specs if spec.parents}
    return {key for spec in distinct.values() for key in spec.parents}


def _resolve_parents(state: State, spec: Spec, references: References, resolver: ReferenceResolver) -> Spec:
    found = resolver.fields(state, references)
    return msgspec.structs.replace(spec, **found) if found else spec


class ReferenceResolver:
    """Resolves references of one user to job keys. Each list of references is resolved once.

    Jobs with equal references get the same tuple of keys, and so share one dependency record.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        # References whose meaning is fixed (`pin`).
        self._pinned: dict[str, JobKey] = {}
        # Resolved lists, by identity and by content.
        self._by_id: dict[int, tuple[tuple[str, ...], Parents]] = {}
        self._by_content: dict[tuple[str, ...], Parents] = {}

    def pin(self, state: State, texts: Iterable[str]) -> None:
        """Resolve these references now; later lookups return the same keys."""
        new = (text for text in texts if text not in self._pinned)
        self._pinned.update({text: resolve(state, self._uid, text) for text in new})

    def fields(self, state: State, references: References) -> dict[str, Parents]:
        """The fields of a spec for these references."""
        named = zip(PARENT_FIELDS, references, strict=True)
        return {name: self.keys(state, texts) for name, texts in named if texts}

    def keys(self, state: State, texts: tuple[str, ...]) -> Parents:
        known = self._by_id.get(id(texts))
        if known is None:
            keys = self._by_content.get(texts)
            if keys is None:
                each = (self._pinned.get(text) or resolve(state, self._uid, text) for text in texts)
                keys = self._by_content[texts] = tuple(dict.fromkeys(each))
            # `texts` is stored as well: while it lives, its id is not reused.
            known = self._by_id[id(texts)] = texts, keys
        return known[1]


def resolved_keys(state: State, uid: int, texts: tuple[str, ...]) -> tuple[JobKey, ...]:
    return tuple(dict.fromkeys(resolve(state, uid, text) for text in texts))


def set_groups(state: State, specs: list[Spec], of_sweep: Sequence[bool] = ()) -> list[Spec]:
    """Put jobs of a sweep or with --max-concurrent into one group. Its id is the first job's number."""
    group = state.jobs.next_number
    return [
        msgspec.structs.replace(spec, group=group)
        if (spec.max_concurrent and not spec.array) or is_of_sweep
        else spec
        for spec, is_of_sweep in zip(specs, of_sweep or [False] * len(specs), strict=True)
    ]


def _intern_neighbours(specs: list[Spec]) -> list[Spec]:
    """Replace equal neighbours by one object, so that ten thousand equal jobs need little memory."""
    shared: list[Spec] = []
    for spec in specs:
        shared.append(shared[-1] if shared and shared[-1] == spec else spec)
    return shared


class RedoCommand(SubmitCommand):
    """Submit new jobs with the specs of earlier ones."""

    def __init__(
        self,
        uid: int,
        user: str,
        token: str,
        keys: Sequence[JobKey],
        change: Change,
        *,
        clear_deps: bool,
        cascade: bool,
        origin: str,
        by_group: bool = False,
        hides: Hides | None = None,
        rights: Rights | None = None,
        keep: Callable[[list[Spec]], None] = lambda specs: None,
        files: Callable[[Spec], Spec] = lambda spec: spec,
    ) -> None:
        # Gives a spec the snapshot of its files that was taken for this submission.
        self._files = files
        super().__init__(uid, user, token, [], origin, hides=hides, rights=rights)
        self._keys = tuple(keys)
        self._change = change
        self._clear_deps = clear_deps
        self._cascade = cascade
        # Jobs of a group that are redone together, or named by their group, are a group again.
        self._is_grouped = by_group or len(self._keys) > 1
        # Counts the environments and scripts of the specs against the user's limit, or refuses them.
        self._keep = keep
        # A note for the caller; empty: none.
        self.note = ""

    def event(self, state: State, store: Store, at: Moment) -> Event:
        jobs = self._jobs(state, store)
        new = {job.key: state.jobs.next_number + index for index, job in enumerate(jobs)}
        specs = [self._cap_priority(_redone_spec(store, job, new)) for job in jobs]
        for index, job in enumerate(jobs):
            if job.key in self._keys:
                specs[index] = self._apply_change(state, job, specs[index])
        specs = list(map(self._files, specs))
        self._keep(specs)
        of_group = [self._is_grouped and job.spec.group > 0 for job in jobs]
        return self.submit(state, store, set_groups(state, specs, of_group), at)

    def stage(self, state: State, store: Store, jobs: Sequence[Job]) -> None:
        """Add jobs to a submission in parts, whose jobs get their numbers later.

        Raises Refused if one depends on another of the jobs: its parent is not known yet.
        """
        roots = set(self._keys)
        for job in jobs:
            if self._cascade or any(_find_job(parent, roots) is not None for parent in job.spec.parents):
                raise Refused(
                    f"{len(roots):,} jobs are too many to redo at once where jobs depend on each other",
                    hint=f"at most {PART}: name a part",
                )
        specs = [self._cap_priority(_redone_spec(store, job, {})) for job in jobs]
        specs = [self._apply_change(state, job, spec) for job, spec in zip(jobs, specs, strict=True)]
        specs = list(map(self._files, specs))
        self._keep(specs)
        self.add(
            [
                ParsedJob(spec=spec, references=References(), blobs={}, is_of_sweep=job.spec.group > 0)
                for job, spec in zip(jobs, specs, strict=True)
            ]
        )

    def _cap_priority(self, spec: Spec) -> Spec:
        """Lower a priority that only an operator may give; the new job is not refused because of it."""
        capped = self.rights.capped(spec) if self.rights is not None else spec
        if capped is not spec and "priority" not in self._change.fields:
            most = capped.priority
            self.note = f"priority {spec.priority} became {most}, the highest that users may ask for here"
        return capped

    def _jobs(self, state: State, store: Store) -> list[Job]:
        """The jobs, and those that were cancelled because of them, parents before children."""
        roots = [self._root(state, store, key) for key in self._keys]
        found = {root.key: root for root in roots}
        to_visit = list(roots) if self._cascade else []
        while to_visit:
            parent = to_visit.pop()
            for job in store.cancelled_with(parent.key):
                # Not jobs of other users: the new job would run as the caller.
                if job.key not in found and (job.uid, job.user) == (parent.uid, parent.user):
                    found[job.key] = job
                    to_visit.append(job)
        first = roots[:1] if len(roots) == 1 else []
        return first + [found[key] for key in _topological_order(found) if found[key] not in first]

    def _root(self, state: State, store: Store, key: JobKey) -> Job:
        root = state.jobs.get(key) or store.job(key)
        if root is None:
            raise NotFound()
        if self.uid not in (root.uid, 0):
            raise Forbidden(f"job {root.label} belongs to {root.user}")
        return root

    def _apply_change(self, state: State, job: Job, spec: Spec) -> Spec:
        """The spec with the changes that the caller asked for."""
        fields: dict[str, Any] = dict(self._change.fields)
        if self._clear_deps:
            spec = msgspec.structs.replace(spec, singleton=False, **dict.fromkeys(PARENT_FIELDS, ()))
        fields |= resolved_fields(state, self.uid, self._change)
        return override_spec(job, spec, fields, self._change.extend_s)


def _topological_order(found: dict[JobKey, Job]) -> list[JobKey]:
    graph: dict[JobKey, list[JobKey]] = {
        key: [known for parent in job.spec.parents if (known := _find_job(parent, found)) is not None]
        for key, job in found.items()
    }
    return list(TopologicalSorter(graph).static_order())


def _find_job(parent: JobKey, found: Container[JobKey]) -> JobKey | None:
    """The key in `found` that is this parent, or the array that it is a task of."""
    array = job_key(number_of(parent))
    return parent if parent in found else array if array in found else None


def _redone_spec(store: Store, job: Job, new: dict[JobKey, int]) -> Spec:
    """The spec for redoing a job: no begin time, no hold, and its parents replaced by their redone jobs."""
    spec = job.spec
    try:
        for address in filter(None, (spec.environ, spec.script)):
            store.blob(address)
    except StoreError:
        raise Refused(f"the environment or script of job {job.label} is not kept any more") from None

    def renumber(parents: tuple[JobKey, ...]) -> tuple[JobKey, ...]:
        return tuple(_renumber(parent, new) for parent in parents)

    return msgspec.structs.replace(
        spec,
        array=spec.array if job.task is None else str(job.task),
        group=0,
        hold=False,
        begin_at=0.0,
        redone_from=job.key,
        depends_earlier=(),
        **{name: renumber(getattr(spec, name)) for name in PARENT_FIELDS},
    )


def _renumber(parent: JobKey, new: dict[JobKey, int]) -> JobKey:
    known = _find_job(parent, new)
    return parent if known is None else job_key(new[known], task_of(parent))
