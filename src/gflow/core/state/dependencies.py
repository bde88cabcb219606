"""Dependencies: parents that must all succeed, and parents of which one must."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gflow.core.ids import JobKey, job_key, number_of
from gflow.core.model import Job, JobState, Spec

Outcome = Callable[[JobKey], JobState | None]


class Wait:
    """Unmet dependencies, of one job or of all jobs of a submission that have the same parents.

    `broken` names the parent that can never be met.
    """

    __slots__ = ("any_of", "broken", "is_open", "jobs", "unmet")

    def __init__(self, unmet: set[JobKey], any_of: set[JobKey] | None, broken: JobKey | None) -> None:
        self.unmet = unmet
        # Parents of which one must succeed; None when one has, or none was asked for.
        self.any_of = any_of
        self.broken = broken
        # The jobs that wait; and whether more may join them.
        self.jobs: set[JobKey] = set()
        self.is_open = False

    @classmethod
    def of(cls, spec: Spec, outcome: Outcome) -> Wait:
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
        return wait

    @property
    def is_over(self) -> bool:
        return not self.unmet and self.any_of is None and self.broken is None

    @property
    def parents(self) -> set[JobKey]:
        """Active parents whose end can change this."""
        return self.unmet | (self.any_of or set())

    def parent_ended(self, key: JobKey, ended: JobState) -> None:
        succeeded = ended is JobState.FINISHED
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
        return (self.unmet, self.any_of, bool(self.broken)) == (other.unmet, other.any_of, bool(other.broken))

    __hash__ = None  # type: ignore[assignment]


def ancestors(
    jobs: dict[JobKey, Job], start: Iterable[JobKey], tasks: dict[JobKey, set[JobKey]] | None = None
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
