"""Submissions of many jobs that are still being taken (see `core.lifecycle.staged_submit`)."""

from __future__ import annotations

from gflow.core.events import Open
from gflow.core.ids import JobKey
from gflow.core.model import Job, Spec
from gflow.core.state.dependencies import Wait

# By the identities of the sets of parents; the spec keeps those alive.
Judgements = dict[tuple[int, int], tuple[Spec, Wait | None]]


class Opened:
    """A submission that is being taken: what it has reserved, and its jobs until it is closed."""

    __slots__ = (
        "at", "bytes", "count", "cursor", "first", "is_closed", "jobs", "left", "links", "origin", "projects",
        "uid", "user", "waits",
    )  # fmt: skip

    def __init__(self, event: Open, first: int) -> None:
        self.first, self.count = first, event.count
        self.uid, self.user, self.at, self.origin = event.uid, event.user, event.at, event.origin
        self.projects = dict(event.projects)
        # What its jobs are made of, so far.
        self.bytes = self.links = 0
        self.jobs: dict[JobKey, Job] = {}
        self.is_closed = False
        # How many have yet to arrive, and how many were looked for in order.
        self.left, self.cursor = event.count, 0
        # By the identities of both sets of parents, which jobs of one request share.
        self.waits: Judgements = {}

    def wait_of(self, spec: Spec) -> Wait | None:
        found = self.waits.get((id(spec.depends_on), id(spec.depends_any))) if spec.parents else None
        return found[1] if found else None
