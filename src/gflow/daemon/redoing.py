"""Doing a job again, as a new one; if wanted, with those that were cancelled because it failed."""

from __future__ import annotations

from collections.abc import Callable
from graphlib import TopologicalSorter
from typing import Any

import msgspec

from gflow.core.events import Event
from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.model import Job, Moment, Spec
from gflow.core.state import State
from gflow.core.updating import overridden
from gflow.daemon.rules import Rights
from gflow.daemon.wishes import Hides, Submitting, in_groups, resolved_keys
from gflow.errors import Forbidden, NotFound, Refused, StoreError
from gflow.store.port import Store
from gflow.wire.changes import Change


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
        return overridden(job, spec, fields, self._change.extend_s)


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
