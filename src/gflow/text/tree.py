"""Jobs as a tree: those that wait for a job stand below it, and those that were made from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gflow.core.ids import JobKey, job_key, number_of
from gflow.text.queue import Entry

# Deeper levels are not indented any further: a chain of ten thousand jobs must not fill the disk.
DEEPEST = 20
SOLID, DASHED = ("├─ ", "╰─ "), ("├┄ ", "╰┄ ")


# Those below a job, and whether it is by a redo.
Below = list[tuple[JobKey, bool]]


class Forest:
    """Filled job by job, linked job by job, then walked line by line: each in as many pieces as one likes."""

    def __init__(self) -> None:
        self._entries: dict[JobKey, Entry] = {}
        self._below: dict[JobKey, Below] = {}
        self._roots: list[JobKey] = []

    def add(self, entry: Entry) -> None:
        self._entries[entry[0].key] = entry

    def link(self) -> Iterator[None]:
        """Find out what is below what, once all are there."""
        for key, (job, _) in self._entries.items():
            parents = [(self._shown(parent), False) for parent in job.spec.parents]
            if job.spec.redone_from:
                parents.append((self._shown(job.spec.redone_from), True))
            above = {parent: is_redo for parent, is_redo in reversed(parents) if parent not in (None, key)}
            for parent, is_redo in above.items():
                assert parent is not None
                self._below.setdefault(parent, []).append((key, is_redo))
            if not above:
                self._roots.append(key)
            yield

    def walk(self) -> Iterator[tuple[str, JobKey, Entry | None]]:
        """(what is drawn before the id, the id, the job: None if its own line is above)."""
        yield from chain.from_iterable(map(self._branch, self._roots))
        while self._entries:  # what only hangs in a circle
            yield from self._branch(next(iter(self._entries)))

    def _shown(self, key: JobKey) -> JobKey | None:
        """The job, or the array in whose line this task still waits; None if it is not listed."""
        whole = job_key(number_of(key))
        return key if key in self._entries else whole if whole in self._entries else None

    def _branch(self, root: JobKey) -> Iterator[tuple[str, JobKey, Entry | None]]:
        # (job, what is drawn before it, what is drawn before those below it, its depth)
        stack: list[tuple[JobKey, str, str, int]] = [(root, "", "", 0)]
        while stack:
            key, before, deeper, depth = stack.pop()
            entry = self._entries.pop(key, None)
            yield before, key, entry
            if entry is None:
                continue
            children = self._below.pop(key, [])
            for place, (child, is_redo) in reversed(list(enumerate(children, 1))):
                is_last = place == len(children)
                mark = (DASHED if is_redo else SOLID)[is_last]
                indent = deeper + ("   " if is_last else "│  ") if depth < DEEPEST else deeper
                stack.append((child, deeper + mark, indent, depth + 1))
