"""Sweeps and arrays that are not over: how many jobs are active, how the others ended, what was judged.

Jobs that ended are not in memory, so these records are kept apart from them. One is stored for each group and
one for each job with judged rules, in the table `meta`; the end of the group deletes them.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from gflow.core.ids import JobKey, job_key, label, parse_label
from gflow.core.key_table import KeyTable
from gflow.core.model import Job, JobState
from gflow.core.reasons import ReasonKind
from gflow.stop_rules import parse_rule

# Names of the stored records: `group 17/` of a group, `group 17/42/` of a job.
_PREFIX = "group "
OUTCOMES = {
    JobState.FINISHED: "finished",
    JobState.FAILED: "failed",
    JobState.TIMEOUT: "timed out",
    JobState.CANCELLED: "cancelled",
}
STOPPED_EARLY = "stopped early"
FAILURES = (OUTCOMES[JobState.FAILED], OUTCOMES[JobState.TIMEOUT])


class GroupTally(msgspec.Struct, omit_defaults=True):
    """How the jobs of a group ended so far."""

    # Submission time of its first job.
    since: float
    # Number of jobs by outcome.
    ended: dict[str, int] = {}
    # The lowest last loss, and its job.
    best: float | None = None
    best_job: JobKey = JobKey(0)

    @property
    def failures(self) -> int:
        return sum(self.ended.get(outcome, 0) for outcome in FAILURES)

    def count(self, job: Job) -> None:
        """Count a job that has ended."""
        is_early = job.reason.kind is ReasonKind.STOPPED_EARLY
        outcome = STOPPED_EARLY if is_early else OUTCOMES[job.state]
        self.ended[outcome] = self.ended.get(outcome, 0) + 1
        self.since = min(self.since, job.submitted_at)
        loss = job.progress_report.loss if job.progress_report is not None else None
        if loss is not None and (self.best is None or loss < self.best):
            self.best, self.best_job = loss, job.key


class Groups:
    """Records by the number of the group: a sweep has a positive one, an array a negative one."""

    def __init__(self) -> None:
        # Sweep -> how many of its jobs are active.
        self.active: Counter[int] = Counter()
        self.tallies: dict[int, GroupTally] = {}
        # Group (0: none) -> job -> rule with `at step` -> the value that was judged.
        self.judged: dict[int, dict[JobKey, dict[str, float]]] = {}
        # Group -> rule about the median -> values of its jobs, sorted.
        self.values: dict[int, dict[str, list[float]]] = {}
        # Records to store with the next commit, and prefixes of those to delete before.
        self.changed: dict[str, str] = {}
        self.dropped: list[str] = []

    def add(self, group: int, count: int = 1) -> None:
        """Count active jobs of a sweep; a negative `count` uncounts them."""
        if group > 0:
            self.active[group] += count
            if not self.active[group]:
                del self.active[group]

    def count_end(self, job: Job) -> GroupTally:
        """Count a job of a group that has ended; return the group's tally."""
        group = job.spec.group
        tally = self.tallies.get(group)
        if tally is None:
            tally = self.tallies[group] = GroupTally(job.submitted_at)
        tally.count(job)
        self.changed[_name(group)] = msgspec.json.encode(tally).decode()
        return tally

    def judged_of(self, job: Job) -> dict[str, float]:
        """The rules of a job that were judged at their step."""
        return self.judged.get(job.spec.group, {}).get(job.key, {})

    def record(self, job: Job, rule: str, value: float) -> None:
        """Record the value by which a rule with `at step` was judged: it is not judged again."""
        group = job.spec.group
        self._record(group, job.key, rule, value)
        self.changed[_name(group, job.key)] = msgspec.json.encode(self.judged_of(job)).decode()

    def _record(self, group: int, key: JobKey, rule: str, value: float) -> None:
        self.judged.setdefault(group, {}).setdefault(key, {})[rule] = value
        if group and parse_rule(rule).is_about_median:
            insort(self.values.setdefault(group, {}).setdefault(rule, []), value)

    def values_of(self, group: int, rule: str) -> list[float]:
        """The values of all jobs of the group that the rule has judged, sorted."""
        return self.values.get(group, {}).get(rule, [])

    def move(self, job: Job, group: int) -> None:
        """Move a job to another group, before its spec changes."""
        old = job.spec.group
        if old == group:
            return
        self.add(old, -1)
        self.add(group)
        for rule, value in self._forget_job(old, job.key).items():
            self._record(group, job.key, rule, value)
            self.changed[_name(group, job.key)] = msgspec.json.encode(self.judged[group][job.key]).decode()

    def _forget_job(self, group: int, key: JobKey) -> dict[str, float]:
        jobs = self.judged.get(group, {})
        rules = jobs.pop(key, {})
        if rules:
            self._drop(_name(group, key))
        if not jobs:
            self.judged.pop(group, None)
        return rules

    def forget(self, job: Job) -> None:
        """Delete the records of a job that has ended and has no group."""
        self._forget_job(0, job.key)

    def end(self, group: int) -> None:
        """Delete all records of a group that is over."""
        if self.tallies.pop(group, None) is not None or group in self.judged:
            self._drop(_name(group))
        self.judged.pop(group, None)
        self.values.pop(group, None)

    def _drop(self, prefix: str) -> None:
        for name in [name for name in self.changed if name.startswith(prefix)]:
            del self.changed[name]
        self.dropped.append(prefix)

    def save(self, records: dict[str, str | int], dropped: list[str]) -> None:
        """Move the changes into a commit: records to store, and prefixes of those to delete before."""
        dropped += self.dropped
        for name in [name for name in records if name.startswith(tuple(self.dropped))]:
            del records[name]
        records.update(self.changed)
        self.changed, self.dropped = {}, []

    def load(self, meta: Mapping[str, str | int]) -> None:
        """Restore the records. Active jobs are counted when they are added."""
        for name, text in meta.items():
            if not name.startswith(_PREFIX):
                continue
            with suppress(ValueError):  # a damaged record starts from zero: no job depends on it
                self._load_record(name.removeprefix(_PREFIX), str(text))

    def _load_record(self, name: str, text: str) -> None:
        group, job, *_ = name.split("/")
        if not job:
            self.tallies[int(group)] = msgspec.json.decode(text, type=GroupTally)
        elif key := parse_label(job):
            for rule, value in msgspec.json.decode(text, type=dict[str, float]).items():
                self._record(int(group), key, rule, value)

    def prune(self, jobs: KeyTable[Job]) -> None:
        """Delete records of groups and jobs that are not active: an older daemon ended them."""
        for group in {*self.tallies, *self.judged} - {0}:
            if group not in self.active if group > 0 else job_key(-group) not in jobs:
                self.end(group)
        for key in [key for key in self.judged.get(0, {}) if key not in jobs]:
            self._forget_job(0, key)


def _name(group: int, key: JobKey | None = None) -> str:
    return f"{_PREFIX}{group}/" if key is None else f"{_PREFIX}{group}/{label(key)}/"
