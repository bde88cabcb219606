"""The tree of `gqueue --tree`: below each job its dependents, and the jobs redone from it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gflow.core.ids import JobKey, job_key, number_of
from gflow.text.queue import Entry

# Maximum indentation: without it the output of a chain of n jobs has O(n²) characters.
DEEPEST = 20
SOLID, DASHED = ("├─ ", "╰─ "), ("├┄ ", "╰┄ ")


# Children of a job, and whether each is a redo of it.
Below = list[tuple[JobKey, bool]]


class Forest:
    """Build with `add`, then `link`, then `walk`. Each works job by job, so that it can be interrupted."""

    def __init__(self) -> None:
        self._entries: dict[JobKey, Entry] = {}
        self._below: dict[JobKey, Below] = {}
        self._roots: list[JobKey] = []

    def add(self, entry: Entry) -> None:
        self._entries[entry[0].key] = entry

    def link(self) -> Iterator[None]:
        """Find the children of each job, after all jobs were added. Yields after each job."""
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
        """Yield (prefix, job key, entry) for each line. The entry is None if the job has a line above."""
        yield from chain.from_iterable(map(self._branch, self._roots))
        while self._entries:  # jobs in a cycle, which have no root
            yield from self._branch(next(iter(self._entries)))

    def _shown(self, key: JobKey) -> JobKey | None:
        """The job, or the array of a task that has no line of its own; None: not listed."""
        array = job_key(number_of(key))
        return key if key in self._entries else array if array in self._entries else None

    def _branch(self, root: JobKey) -> Iterator[tuple[str, JobKey, Entry | None]]:
        # (job, prefix of its line, prefix of its children, depth)
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
