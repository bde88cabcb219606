"""Queries about a group, or the tasks of an array, on a database."""

from contextlib import closing

import pytest

from gflow.core.ids import job_key
from gflow.core.model import JobProgress, JobState
from gflow.store import group_figures
from gflow.store.bulk import OpenSubmission
from gflow.store.group_figures import RANGE, Members, members_of, tally, tally_groups, tasks_of
from gflow.store.port import Changes
from gflow.store.sqlite import SqliteStore

from .builders import NOON, ended, job, running

FAILED, CANCELLED, TIMEOUT = JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT


def report(**values):
    return JobProgress(at=NOON, step=1, **values)


# Group 2 has the jobs 2 to 7; 1 and 8 are none of it. Group 20 was made by an update: 20 and 25.
JOBS = [
    job(1),
    ended(2, started_at=NOON, group=2, parameters=(("lr", "0.1"), ("seed", "1")),
          progress_report=report(loss=0.5)),
    ended(3, FAILED, started_at=NOON + 5, group=2, parameters=(("lr", "0.2"), ("seed", "1")),
          progress_report=report(loss=2.0, metrics={"accuracy": 0.9})),
    ended(4, TIMEOUT, started_at=NOON, group=2, parameters=(("lr", "0.1"), ("seed", "1"))),
    ended(5, CANCELLED, group=2, parameters=(("lr", "0.3"), ("seed", "1"))),
    running(6, 0, group=2, parameters=(("lr", "0.1"), ("seed", "1")), progress_report=report(loss=0.1)),
    job(7, group=2, parameters=(("lr", "0.4"), ("seed", "1"))),
    job(8),
    job(20, group=20),
    job(25, group=20),
    job(30, array="1-3", group=-30),
    ended(30, task=1, started_at=NOON, group=-30, array="1-3"),
]  # fmt: skip


@pytest.fixture
def store(tmp_path):
    with closing(SqliteStore(tmp_path / "gflow.db")) as store:
        store.commit(Changes(jobs={job.key: job for job in JOBS}))
        yield store


@pytest.fixture
def reader(store):
    with closing(store.reader()) as reader:
        yield reader


MEMBERS = Members(2, job_key(2), job_key(7))


@pytest.mark.parametrize(
    ("group", "members"),
    [(2, MEMBERS), (20, Members(20, job_key(20), job_key(25))), (1, None), (3, None), (500, None)],
)
def test_members_are_found_from_the_number_of_the_group(reader, group, members):
    assert members_of(reader, group) == members


def test_a_group_may_be_longer_than_one_search(store):
    store.commit(Changes(jobs={key: job(n, group=100) for n in (100, 100 + RANGE) for key in [job_key(n)]}))
    with closing(store.reader()) as reader:
        assert members_of(reader, 100) == Members(100, job_key(100), job_key(100 + RANGE))


def test_a_group_of_a_submission_that_is_not_closed_is_hidden(store):
    opened = OpenSubmission(first=100, count=2, uid=0, origin="")
    store.commit(Changes(bulk={1: opened}, staged=[job(100, group=100), job(101, group=100)]))
    with closing(store.reader()) as reader:
        assert members_of(reader, 100) is None


def test_sums_of_one_group(reader):
    sums = tally(reader, MEMBERS)
    assert {state.value: count for state, count in sums.states.items()} == {
        "Cancelled": 1, "Failed": 1, "Finished": 1, "Queued": 1, "Running": 1, "Timeout": 1,
    }  # fmt: skip
    assert (sums.started_at, sums.finished_at, sums.ran_s, sums.last) == (NOON, NOON + 100, 100, job_key(7))


def test_sums_of_several_groups_include_jobs_after_the_last_known_one(reader):
    sums = dict(tally_groups(reader, {2: job_key(2), 20: job_key(25)}))
    assert sums[2] == tally(reader, MEMBERS)
    assert sums[20].states == {JobState.QUEUED: 2}


def test_sums_of_jobs_that_had_ended_at_a_time(reader):
    ((group, sums),) = tally_groups(reader, {2: job_key(7), 20: job_key(25)}, ended_by=NOON + 100)
    assert group == 2 and sum(sums.states.values()) == 4
    assert list(tally_groups(reader, {2: job_key(7)}, ended_by=NOON + 99)) == []


def test_single_jobs(reader):
    assert [job.number for job in group_figures.running_jobs(reader, MEMBERS)] == [6]
    assert [job.number for job in group_figures.failed_jobs(reader, MEMBERS, 10)] == [3, 4]
    assert [job.number for job in group_figures.failed_jobs(reader, MEMBERS, 1)] == [3]
    assert group_figures.last_waiting(reader, MEMBERS).number == 7
    assert [job.label for job in group_figures.jobs_of(reader, tasks_of(job_key(30)))] == ["30_1"]


@pytest.mark.parametrize(("metric", "numbers"), [("loss", [2, 3]), ("accuracy", [3, 3]), ("f1", [])])
def test_lowest_and_highest_value_of_jobs_that_do_not_run(reader, metric, numbers):
    assert [job.number for job in group_figures.extreme_jobs(reader, MEMBERS, metric)] == numbers


def test_parameters_that_differ(reader):
    assert group_figures.varied_parameters(reader, MEMBERS) == {"lr": ["0.1", "0.2", "0.3", "0.4"]}
    assert group_figures.varied_parameters(reader, tasks_of(job_key(30))) == {}


def test_no_query_scans_the_whole_table(reader, monkeypatch):
    plans = []
    rows = reader.rows

    def explained(sql, values=()):
        plans.append("; ".join(row[-1] for row in rows(f"EXPLAIN QUERY PLAN {sql}", values)))
        return rows(sql, values)

    monkeypatch.setattr(reader, "rows", explained)
    members = members_of(reader, 2)
    tally(reader, members)
    list(tally_groups(reader, {2: members.last, 20: job_key(25), 5000: job_key(5000)}, ended_by=NOON + 500))
    group_figures.running_jobs(reader, members)
    group_figures.extreme_jobs(reader, members, "loss")
    group_figures.varied_parameters(reader, members)
    assert len(plans) > 8
    assert not [plan for plan in plans if "SCAN jobs" in plan or "jobs_" in plan], plans
