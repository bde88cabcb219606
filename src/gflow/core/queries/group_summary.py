"""Figures about a group, or the tasks of an array: counts by state, progress, expected time to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gflow.core.model import FINAL, Job, JobState, Moment

# The count of `GroupCounts` in which each state is counted. Any other end is a failure.
COUNTED = (
    dict.fromkeys(JobState, "waiting")
    | dict.fromkeys(FINAL, "failed")
    | {
        JobState.RUNNING: "running",
        JobState.HOLD: "held",
        JobState.FINISHED: "finished",
        JobState.CANCELLED: "cancelled",
    }
)


# Steps of a job tell how long it takes once it has run for this many seconds.
LEAST_S = 5.0


class GroupTally(msgspec.Struct, kw_only=True):
    """Sums over the jobs of a group, as the database has them."""

    states: dict[JobState, int] = msgspec.field(default_factory=dict)
    # The first start and the last end so far (wall clock).
    started_at: float | None = None
    finished_at: float | None = None
    # Sum of the run times of the jobs that are Finished, in seconds.
    ran_s: float = 0.0
    # Key of the last job.
    last: int = 0
    # How many of the cancelled jobs a rule stopped early.
    stopped_early: int = 0

    def add(self, other: GroupTally) -> None:
        """Add the sums over other jobs of the same group."""
        for state, count in other.states.items():
            self.states[state] = self.states.get(state, 0) + count
        self.started_at = min(filter(None, (self.started_at, other.started_at)), default=None)
        self.finished_at = max(filter(None, (self.finished_at, other.finished_at)), default=None)
        self.ran_s += other.ran_s
        self.last = max(self.last, other.last)
        self.stopped_early += other.stopped_early


class GroupCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of a group are in which state. `failed` includes jobs that reached their time limit."""

    running: int = 0
    waiting: int = 0
    held: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    # Those of the cancelled jobs that a rule stopped early.
    stopped_early: int = 0

    @property
    def ended(self) -> int:
        return self.finished + self.failed + self.cancelled

    @property
    def total(self) -> int:
        return self.running + self.waiting + self.held + self.ended


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a group. Times are on the wall clock."""

    counts: GroupCounts
    # Part of the group that is done, from 0 to 1. Running jobs count by their own reports.
    progress: float
    # Expected seconds to the end of its last job; None: unknown, or it has ended.
    left_s: float | None
    started_at: float | None
    # None: it has not ended.
    finished_at: float | None


def count_states(states: Mapping[JobState, int]) -> GroupCounts:
    """The counts of a group from the number of its jobs in each state."""
    counts: dict[str, int] = {}
    for state, number in states.items():
        counts[COUNTED[state]] = counts.get(COUNTED[state], 0) + number
    return GroupCounts(**counts)


def array_tally(array: Job) -> GroupTally:
    """The sums over the tasks of an array, from its record. Tasks that never started ended with the array."""
    progress = array.progress
    assert progress is not None
    states = {
        JobState.RUNNING: progress.active,
        JobState.FINISHED: progress.ok,
        JobState.FAILED: progress.bad,
        JobState.CANCELLED: progress.cancelled,
    }
    # The record of an array has the state Running once all of its tasks have started.
    pending = JobState.QUEUED if array.state is JobState.RUNNING else array.state
    states[pending] = states.get(pending, 0) + len(progress.pending)
    return GroupTally(states=states, started_at=array.started_at, finished_at=array.finished_at)


def summarise(
    tally: GroupTally, running: Sequence[Job], now: Moment, estimated_s: float | None
) -> GroupSummary:
    """The figures of a group. `estimated_s`: the engine's runtime estimate for one of its jobs."""
    counts = msgspec.structs.replace(count_states(tally.states), stopped_early=tally.stopped_early)
    length_s = usual_length(tally, running, now, estimated_s)
    is_active = counts.ended < counts.total
    return GroupSummary(
        counts=counts,
        progress=_progress(counts, running),
        left_s=_left_s(counts, running, now, length_s) if is_active else None,
        started_at=tally.started_at,
        finished_at=None if is_active else tally.finished_at,
    )


def _progress(counts: GroupCounts, running: Sequence[Job]) -> float:
    done = counts.ended + sum(job.progress_report.part for job in running if job.progress_report is not None)
    return min(1.0, done / counts.total) if counts.total else 0.0


def usual_length(
    tally: GroupTally, running: Sequence[Job], now: Moment, estimated_s: float | None
) -> float | None:
    """How long a job of the group runs: the mean of the finished ones, else what the running ones report."""
    finished = tally.states.get(JobState.FINISHED, 0)
    if finished and tally.ran_s:
        return tally.ran_s / finished
    if finished and estimated_s is not None:  # an array: the estimate rests on its finished tasks
        return estimated_s
    lefts = [(job, _reported_left_s(job, now)) for job in running]
    reported = [(job.run_s(now.boot) or 0.0) + left for job, left in lefts if left is not None]
    return sum(reported) / len(reported) if reported else estimated_s


def _left_s(counts: GroupCounts, running: Sequence[Job], now: Moment, length_s: float | None) -> float | None:
    """Seconds to the end of the last job, if as many jobs run at once as now.

    Each waiting job takes the place of the running job that ends first. None if nothing runs, if the length
    of a job is unknown, or if held jobs remain.
    """
    ends = [_job_left_s(job, now, length_s) for job in running]
    known = sorted(end for end in ends if end is not None)
    if counts.held or not known or len(known) < len(ends):
        return None
    if not counts.waiting:
        return known[-1]
    if length_s is None:
        return None
    rounds, more = divmod(counts.waiting, len(known))
    latest = known[-1] + rounds * length_s
    return max(latest, known[more - 1] + (rounds + 1) * length_s) if more else latest


def _job_left_s(job: Job, now: Moment, length_s: float | None) -> float | None:
    """Seconds to the end of a running job, by its report, else by the usual length."""
    left = _reported_left_s(job, now)
    if left is not None or length_s is None:
        return left
    return max(0.0, length_s - (job.run_s(now.boot) or 0.0))


def _reported_left_s(job: Job, now: Moment) -> float | None:
    """Seconds to the end of a running job, as it reports them, or by the steps that it has done."""
    left, report = job.left_s(now.wall), job.progress_report
    if left is not None or report is None or job.started_at is None or report.at <= job.started_at:
        return left
    if not report.part or report.at - job.started_at < LEAST_S:
        return None
    return max(0.0, (report.at - job.started_at) / report.part - (now.wall - job.started_at))
