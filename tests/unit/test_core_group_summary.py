"""The figures of a group: counts by state, progress, expected time to its end."""

import pytest

from gflow.core.model import ArrayProgress, JobProgress, JobState, Moment
from gflow.core.queries.group_summary import GroupCounts, GroupTally, array_tally, count_states, summarise
from gflow.core.task_set import parse_tasks

from .builders import NOON, job, running

# Jobs of `running` started at NOON + 10.
NOW = Moment(NOON + 70, 70.0)
R, PD, H, CD = JobState.RUNNING, JobState.QUEUED, JobState.HOLD, JobState.FINISHED


def report(step=0, steps=0, left_s=None, at=NOON + 70):
    return JobProgress(at=at, step=step, steps=steps, left_s=left_s)


LONG = report(left_s=500)


def test_counts_add_up_and_timeouts_count_as_failed():
    states = dict.fromkeys(JobState, 2)
    counts = count_states(states)
    assert counts == GroupCounts(running=2, waiting=2, held=2, finished=2, failed=4, cancelled=2)
    assert (counts.ended, counts.total) == (8, 14)


@pytest.mark.parametrize(
    ("states", "jobs", "part"),
    [
        ({}, [], 0.0),
        ({PD: 4}, [], 0.0),
        ({CD: 1, JobState.FAILED: 1, JobState.CANCELLED: 1, PD: 1}, [], 0.75),
        ({R: 1, CD: 1}, [running(1)], 0.5),
        ({R: 1, CD: 1}, [running(1, progress_report=report(5, 10))], 0.75),
        ({R: 1, CD: 1}, [running(1, progress_report=report(7))], 0.5),
        ({R: 1, CD: 1}, [running(1, progress_report=report(99, 10))], 1.0),
    ],
)
def test_progress_counts_ended_jobs_and_the_steps_of_running_ones(states, jobs, part):
    assert summarise(GroupTally(states=states), jobs, NOW, None).progress == part


@pytest.mark.parametrize(
    ("states", "ran_s", "jobs", "estimated_s", "left_s"),
    [
        # Two finished in 100 s each; both running jobs have run for 60 s.
        ({CD: 2, R: 2}, 200.0, [running(1), running(2)], None, 40.0),
        ({CD: 2, R: 2, PD: 2}, 200.0, [running(1), running(2)], None, 140.0),
        ({CD: 2, R: 2, PD: 3}, 200.0, [running(1), running(2)], None, 240.0),
        # A report is better than the mean; the next job takes the place that becomes free first.
        ({CD: 1, R: 2}, 100.0, [running(1, progress_report=LONG), running(2)], None, 500.0),
        ({CD: 1, R: 2, PD: 1}, 100.0, [running(1, progress_report=LONG), running(2)], None, 500.0),
        # Nothing has finished: reports of running jobs, their steps, then the estimate of the engine.
        ({R: 1, PD: 2}, 0.0, [running(1, progress_report=report(left_s=40))], 9.0, 240.0),
        ({R: 1, PD: 1}, 0.0, [running(1, progress_report=report(3, 6))], None, 180.0),
        ({R: 1, PD: 1}, 0.0, [running(1, progress_report=report(1, 60, at=NOON + 11))], None, None),
        ({R: 1, PD: 1}, 0.0, [running(1)], 90.0, 120.0),
        ({R: 1, PD: 1}, 0.0, [running(1)], None, None),
        # The tasks of an array: the estimate rests on the finished ones.
        ({CD: 5, R: 1, PD: 1}, 0.0, [running(1, progress_report=report(left_s=1))], 90.0, 91.0),
        # It cannot be known: nothing runs, or held jobs remain. It has ended.
        ({CD: 2, PD: 2}, 200.0, [], None, None),
        ({CD: 2, R: 1, H: 1}, 200.0, [running(1)], None, None),
        ({CD: 2}, 200.0, [], None, None),
    ],
)  # fmt: skip
def test_time_to_the_end(states, ran_s, jobs, estimated_s, left_s):
    summary = summarise(GroupTally(states=states, ran_s=ran_s), jobs, NOW, estimated_s)
    assert summary.left_s == (None if left_s is None else pytest.approx(left_s))


def test_report_of_an_earlier_attempt_is_not_used():
    jobs = [running(1, progress_report=report(9, 10, left_s=5, at=NOON + 9))]
    assert summarise(GroupTally(states={R: 1}), jobs, NOW, None).left_s is None


def test_end_is_given_only_of_a_group_that_has_ended():
    times = {"started_at": NOON, "finished_at": NOON + 50}
    assert summarise(GroupTally(states={CD: 2, PD: 1}, **times), [], NOW, None).finished_at is None
    over = summarise(GroupTally(states={CD: 2}, **times), [], NOW, None)
    assert (over.started_at, over.finished_at) == (NOON, NOON + 50)


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (PD, GroupCounts(waiting=3, running=2, finished=4, failed=1, cancelled=1)),
        (H, GroupCounts(held=3, running=2, finished=4, failed=1, cancelled=1)),
        (R, GroupCounts(waiting=3, running=2, finished=4, failed=1, cancelled=1)),
        (JobState.CANCELLED, GroupCounts(running=2, finished=4, failed=1, cancelled=4)),
    ],
)
def test_tasks_of_an_array_are_counted_from_its_record(state, counts):
    progress = ArrayProgress(parse_tasks("7-9"), active=2, ok=4, bad=1, cancelled=1)
    array = job(1, array="1-11", progress=progress, state=state, attempt=1, started_at=NOON)
    assert count_states(array_tally(array).states) == counts
