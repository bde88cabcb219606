"""Jobs as a tree: those that wait for a job stand below it, and those that were made from it."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.core.ids import JobKey, job_key, number_of
from gflow.text.queue import Entry

# Deeper levels are not indented any further: a chain of ten thousand jobs must not fill the disk.
DEEPEST = 20
SOLID, DASHED = ("├─ ", "╰─ "), ("├┄ ", "╰┄ ")


class Forest:
    """Filled job by job, then walked line by line."""

    def __init__(self) -> None:
        self._entries: dict[JobKey, Entry] = {}

    def add(self, entry: Entry) -> None:
        self._entries[entry[0].key] = entry

    def walk(self) -> Iterator[tuple[str, Entry, bool]]:
        """(lines to draw before the id, the job, whether it only refers to the job's own line)."""
        below, roots = self._links()
        drawn: set[JobKey] = set()
        for root in (*roots, *self._entries):  # the second time round: what only hangs in a circle
            if root not in drawn:
                yield from self._branch(root, below, drawn)

    def _links(self) -> tuple[dict[JobKey, list[tuple[JobKey, bool]]], list[JobKey]]:
        """For each job those below it, and whether by a redo; and the jobs that are below none."""
        below: dict[JobKey, list[tuple[JobKey, bool]]] = {}
        roots = []
        for key, (job, _) in self._entries.items():
            parents = [(self._shown(parent), False) for parent in job.spec.parents]
            if job.spec.redone_from:
                parents.append((self._shown(job.spec.redone_from), True))
            above = {parent: is_redo for parent, is_redo in reversed(parents) if parent not in (None, key)}
            for parent, is_redo in above.items():
                assert parent is not None
                below.setdefault(parent, []).append((key, is_redo))
            if not above:
                roots.append(key)
        return below, roots

    def _shown(self, key: JobKey) -> JobKey | None:
        """The job, or the array in whose line this task still waits; None if it is not listed."""
        whole = job_key(number_of(key))
        return key if key in self._entries else whole if whole in self._entries else None

    def _branch(
        self, root: JobKey, below: dict[JobKey, list[tuple[JobKey, bool]]], drawn: set[JobKey]
    ) -> Iterator[tuple[str, Entry, bool]]:
        # (job, what is drawn before it, what is drawn before those below it, its depth)
        stack: list[tuple[JobKey, str, str, int]] = [(root, "", "", 0)]
        while stack:
            key, before, deeper, depth = stack.pop()
            is_reference = key in drawn
            yield before, self._entries[key], is_reference
            if is_reference:
                continue
            drawn.add(key)
            children = below.get(key, [])
            for place, (child, is_redo) in reversed(list(enumerate(children, 1))):
                is_last = place == len(children)
                mark = (DASHED if is_redo else SOLID)[is_last]
                indent = deeper + ("   " if is_last else "│  ") if depth < DEEPEST else deeper
                stack.append((child, deeper + mark, indent, depth + 1))
