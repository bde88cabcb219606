"""Filters of job listings. `store.reader` has the same in SQL; a property test compares both."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from gflow.core.model import Job, JobState

# Stands for all users where a list of users is expected.
EVERY_USER = "all"


def is_pattern(name: str) -> bool:
    """Whether a name in a filter has wildcards of the shell: `*`, `?`, `[…]`."""
    return not set(name).isdisjoint("*?[")


def matches_name(name: str, wanted: Iterable[str]) -> bool:
    """Whether a name is one of the wanted names, or matches one with wildcards."""
    return any(name == one or (is_pattern(one) and fnmatchcase(name, one)) for one in wanted)


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that must all hold. An empty condition always holds."""

    states: frozenset[JobState] = frozenset()
    users: frozenset[str] = frozenset()
    # Names, or patterns: exp-*.
    names: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    # Ranges of job keys, both ends included.
    spans: tuple[tuple[int, int], ...] = ()
    # Active jobs, and jobs that ended since this time (wall clock).
    since: float = 0.0

    def matches(self, job: Job) -> bool:
        return (
            job.is_listed
            and (not self.states or job.state in self.states)
            and (not self.users or job.user in self.users)
            and (not self.names or matches_name(job.name, self.names))
            and (not self.projects or job.spec.project in self.projects)
            and (not self.targets or job.target in self.targets)
            and (not self.partitions or job.spec.partition in self.partitions)
            and (not self.spans or any(low <= job.key <= high for low, high in self.spans))
            and (not self.since or job.finished_at is None or job.finished_at >= self.since)
        )


def merge_spans(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge adjacent and overlapping ranges."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(joined)
