"""Dependencies: parents that must succeed (all, or one of them), end, fail or start before a job starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gflow.core.ids import JobKey, job_key, number_of, task_of
from gflow.core.key_table import KeyTable
from gflow.core.model import Job, JobState, Spec
from gflow.core.state.sorted_keys import SortedKeys

Outcome = Callable[[JobKey], JobState | None]
# What a parent besides those that must succeed has to do, as bits.
END, FAILURE, START = 1, 2, 4


class Wait:
    """Unmet dependencies, of one job or of all jobs of a submission that have the same parents.

    `broken` names the parent that can never be met.
    """

    __slots__ = ("any_of", "broken", "is_open", "jobs", "others", "unmet")

    def __init__(self, unmet: set[JobKey], any_of: set[JobKey] | None, broken: JobKey | None) -> None:
        self.unmet = unmet
        # Parents of which one must succeed; None when one has, or none was asked for.
        self.any_of = any_of
        self.broken = broken
        # Parents that must end, fail or start.
        self.others: dict[JobKey, int] = {}
        # The jobs that wait; and whether more may join them.
        self.jobs = SortedKeys()
        self.is_open = False

    @classmethod
    def of(cls, spec: Spec, outcome: Outcome, has_begun: Callable[[JobKey], bool]) -> Wait:
        """The unmet dependencies of a spec. `outcome`: how a parent ended; None: it has not."""
        wait = cls(set(), None, None)
        for key in spec.depends_on:
            ended = outcome(key)
            if ended is None:
                wait.unmet.add(key)
            elif ended is not JobState.FINISHED:
                wait.broken = wait.broken or key
        if spec.depends_any:
            ends = {key: outcome(key) for key in spec.depends_any}
            if JobState.FINISHED not in ends.values():
                wait.any_of = {key for key, ended in ends.items() if ended is None}
                if not wait.any_of:
                    wait.broken = wait.broken or spec.depends_any[-1]
        wait._add_others(spec, outcome, has_begun)
        return wait

    def _add_others(self, spec: Spec, outcome: Outcome, has_begun: Callable[[JobKey], bool]) -> None:
        for key in spec.depends_end + spec.depends_earlier:
            if outcome(key) is None:
                self.others[key] = END
        for key in spec.depends_failure:
            ended = outcome(key)
            if ended is None:
                self.others[key] = self.others.get(key, 0) | FAILURE
            elif ended is JobState.FINISHED:
                self.broken = self.broken or key
        for key in spec.depends_start:
            if outcome(key) is None and not has_begun(key):
                self.others[key] = self.others.get(key, 0) | START

    @property
    def is_over(self) -> bool:
        return not self.unmet and self.any_of is None and not self.others and self.broken is None

    @property
    def parents(self) -> set[JobKey]:
        """Active parents whose start or end can change this."""
        return self.must_succeed | self.others.keys()

    @property
    def must_succeed(self) -> set[JobKey]:
        """Active parents that must succeed: all of them, or one."""
        return self.unmet | (self.any_of or set())

    def parent_started(self, key: JobKey) -> None:
        if left := self.others.get(key, 0) & ~START:
            self.others[key] = left
        else:
            self.others.pop(key, None)

    def parent_ended(self, key: JobKey, ended: JobState) -> None:
        succeeded = ended is JobState.FINISHED
        if self.others.pop(key, 0) & FAILURE and succeeded:
            self.broken = self.broken or key
        if key in self.unmet:
            self.unmet.discard(key)
            if not succeeded:
                self.broken = self.broken or key
        if self.any_of is not None and key in self.any_of:
            self.any_of.discard(key)
            if succeeded:
                self.any_of = None
            elif not self.any_of:
                self.broken = self.broken or key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Wait):
            return NotImplemented
        return self._content == other._content

    @property
    def _content(self) -> tuple[object, ...]:
        return self.unmet, self.any_of, self.others, bool(self.broken)

    __hash__ = None  # type: ignore[assignment]


class Dependencies:
    """The unmet dependencies of waiting jobs, found by job and by parent."""

    def __init__(self) -> None:
        # Jobs that wait for parents.
        self.waits: KeyTable[Wait] = KeyTable()
        # Parent -> the Waits on it, by identity. Jobs with the same parents share a Wait, so that m jobs with
        # n parents take m + n links.
        self.children: dict[JobKey, dict[int, Wait]] = {}
        # Array -> its tasks that are parents of waiting jobs.
        self.awaited: dict[JobKey, set[JobKey]] = {}
        # Parents for whose start a job may wait.
        self.awaited_starts: set[JobKey] = set()

    def add(self, job: Job, wait: Wait) -> None:
        """Let `job` wait until `wait` is over."""
        self.waits[job.key] = wait
        if not wait.jobs and not wait.is_open:
            self.link(wait)
        wait.jobs.add(job.key)

    def remove(self, key: JobKey) -> None:
        """Let a job wait for no parents."""
        if key in self.waits:
            wait = self.waits.pop(key)
            wait.jobs.remove(key)
            self.unlink_idle(wait)

    def link(self, wait: Wait) -> None:
        """Register a Wait with its parents, so that their ends reach it."""
        for parent in wait.parents:
            self.children.setdefault(parent, {})[id(wait)] = wait
            if task_of(parent) is not None:
                self.awaited.setdefault(job_key(number_of(parent)), set()).add(parent)
        self.awaited_starts.update(key for key, needs in wait.others.items() if needs & START)

    def unlink_idle(self, wait: Wait) -> None:
        """Unregister a Wait that has no jobs and gets none."""
        if not wait.jobs and not wait.is_open:
            for parent in wait.parents:
                self.unlink(parent, wait)

    def unlink(self, parent: JobKey, wait: Wait) -> None:
        """Unregister `wait` from `parent`."""
        del self.children[parent][id(wait)]
        if not self.children[parent]:
            self.take_waits(parent)

    def children_of(self, parent: JobKey) -> list[JobKey]:
        """The jobs that wait for `parent`, in order."""
        return sorted(key for wait in self.children.get(parent, {}).values() for key in wait.jobs)

    def take_waits(self, parent: JobKey) -> list[Wait]:
        """Remove and return the Waits on `parent`."""
        self.awaited_starts.discard(parent)
        if task_of(parent) is not None and parent in self.children:
            array = job_key(number_of(parent))
            self.awaited[array].discard(parent)
            if not self.awaited[array]:
                del self.awaited[array]
        return list(self.children.pop(parent, {}).values())

    def take_start_waits(self, parent: JobKey) -> list[Wait]:
        """Tell the Waits on the start of `parent` that it has started; return them."""
        self.awaited_starts.discard(parent)
        waits = [wait for wait in self.children[parent].values() if wait.others.get(parent, 0) & START]
        for wait in waits:
            wait.parent_started(parent)
            if parent not in wait.parents:
                self.unlink(parent, wait)
        return waits


def ancestors(
    jobs: KeyTable[Job] | dict[JobKey, Job],
    start: Iterable[JobKey],
    tasks: dict[JobKey, set[JobKey]] | None = None,
) -> set[JobKey]:
    """`start` and all its active ancestors. A job that depends on `start` must not be one of them: a cycle.

    `tasks`: the started tasks of each array. An array ends when they have ended.
    """
    stack = list(start)
    seen: set[JobKey] = set()
    found: set[JobKey] = set()
    while stack:
        key = stack.pop()
        if key in seen:
            continue
        seen.add(key)
        # A task that waits in its array starts from it; an array ends with its tasks.
        job = jobs.get(key) or jobs.get(job_key(number_of(key)))
        found.add(key)
        if job is not None:
            found.add(job.key)
            stack += job.spec.parents
            stack += (tasks or {}).get(key, ())
    return found
