"""The end of a group: an audit entry for its first failure, and one when its last job has ended.

Both are made in the step that ends the job, so they are stored with it: once, whenever the daemon restarts.
"""

from __future__ import annotations

import re

from gflow.core.effects import AddAuditEntry, Effect
from gflow.core.ids import job_key, label
from gflow.core.lifecycle.limits import spell_duration
from gflow.core.model import Job, JobState, Moment
from gflow.core.state.groups import FAILURES, OUTCOMES, STOPPED_EARLY, GroupTally
from gflow.core.state.state import State

ENDED = "group ended"
FIRST_FAILURE = "group failure"
_ORDER = (*OUTCOMES.values(), STOPPED_EARLY)
_COUNT = re.compile(rf"([0-9]+) ({'|'.join(_ORDER)})")


def note_end(state: State, job: Job, at: Moment, effects: list[Effect]) -> None:
    """Count a job that has become final in its group; note the first failure and the end of the group."""
    group, groups = job.spec.group, state.groups
    groups.add(group, -1)
    if not group:
        groups.forget(job)
    elif job.is_array:
        _end_group(state, job, groups.tallies.get(group) or GroupTally(job.submitted_at), at, effects)
    else:
        tally = groups.count_end(job)
        is_over = group > 0 and not groups.active[group]
        is_alone = is_over and sum(tally.ended.values()) == 1
        is_failure = OUTCOMES[job.state] in FAILURES
        if is_failure and tally.failures == 1 and not is_alone:
            effects.append(AddAuditEntry(job.key, FIRST_FAILURE, f"{_name(group)}: {job.reason}"))
        if is_over:
            _end_group(state, job, tally, at, [] if is_alone else effects)


def _end_group(state: State, job: Job, tally: GroupTally, at: Moment, effects: list[Effect]) -> None:
    state.groups.end(job.spec.group)
    took_s = max(0.0, at.wall - tally.since)
    text = f"{_name(job.spec.group)}: {_summarize(job, tally)} in {spell_duration(took_s)}"
    if tally.best is not None:
        text += f", best loss {tally.best:.4g} (job {label(tally.best_job)})"
    effects.append(AddAuditEntry(job.key, ENDED, text))


def _summarize(job: Job, tally: GroupTally) -> str:
    """`195 finished, 5 failed`. Tasks of an array that never started are cancelled."""
    ended = dict(tally.ended)
    if job.progress is not None and (unstarted := len(job.progress.pending)):
        cancelled = OUTCOMES[JobState.CANCELLED]
        ended[cancelled] = ended.get(cancelled, 0) + unstarted
    return ", ".join(f"{ended[outcome]} {outcome}" for outcome in _ORDER if ended.get(outcome))


def read_counts(detail: str) -> dict[str, int]:
    """The number of jobs by outcome, from the audit entry of the end of a group."""
    return {outcome: int(count) for count, outcome in _COUNT.findall(detail)}


def _name(group: int) -> str:
    return f"group g{group}" if group > 0 else f"array {label(job_key(-group))}"
