"""Staged submissions that are not complete yet (see `core.lifecycle.staged_submit`)."""

from __future__ import annotations

from collections import Counter

from gflow.core.events import Open
from gflow.core.key_table import KeyTable
from gflow.core.model import Job, Spec
from gflow.core.state.dependencies import Wait
from gflow.core.state.name_index import NameIndex
from gflow.core.state.sorted_keys import SortedKeys

# By the identity of the parents; the spec keeps them alive.
WaitCache = dict[tuple[int, ...], tuple[Spec, Wait | None]]


class Opened:
    """A staged submission: the counts it has reserved, and its jobs until it is closed."""

    __slots__ = (
        "arriving", "at", "bytes", "count", "cursor", "first", "groups", "is_closed", "jobs", "left", "links",
        "names", "order", "origin", "projects", "uid", "user", "waits",
    )  # fmt: skip

    def __init__(self, event: Open, first: int) -> None:
        self.first, self.count = first, event.count
        self.uid, self.user, self.at, self.origin = event.uid, event.user, event.at, event.origin
        self.projects = dict(event.projects)
        # Size and number of parents of its jobs so far.
        self.bytes = self.links = 0
        self.jobs: KeyTable[Job] = KeyTable()
        self.order = SortedKeys()
        # What `State.arriving` will have of them.
        self.arriving: KeyTable[int] = KeyTable()
        # How many of its jobs are in each group.
        self.groups: Counter[int] = Counter()
        self.is_closed = False
        # How many jobs have not arrived in the queue yet, and how many have been scanned in order.
        self.left, self.cursor = event.count, 0
        # Jobs of one request share their tuples of parents, and so one `Wait`.
        self.waits: WaitCache = {}
        # Its jobs by name.
        self.names = NameIndex()

    def wait_of(self, spec: Spec) -> Wait | None:
        found = self.waits.get(spec.parents_id) if spec.parents else None
        return found[1] if found else None
