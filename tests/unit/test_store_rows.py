import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from gflow.core.model import FINAL, Job, JobState
from gflow.store.rows import COLUMNS, SELECT, UPSERT, from_row, to_row
from gflow.store.schema import script_from

from .builders import any_struct, job

jobs = any_struct(Job)


def lawful(any_job):
    """The same job with what the schema demands of its state."""
    if any_job.state is JobState.RUNNING:
        any_job.attempt += 1
        any_job.started_at = any_job.started_at or 1.0
    else:
        any_job.stopping = None
    any_job.finished_at = (any_job.finished_at or 2.0) if any_job.state in FINAL else None
    return any_job


def test_every_field_of_a_job_has_a_column():
    assert sorted(COLUMNS) == sorted(Job.__struct_encode_fields__)


@given(jobs)
def test_a_row_reads_back_as_the_job(written):
    row = to_row(written)
    assert len(row) == len(COLUMNS)
    assert from_row(row, {}) == written


@given(jobs.map(lawful), st.sampled_from(JobState))
def test_a_row_survives_the_database(written, state_before):
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(script_from(0))
        if state_before not in FINAL:  # an update must leave nothing of what was there but whose it is
            before = job(written.number, task=written.task, state=state_before)
            before.uid, before.user = written.uid, written.user
            db.execute(UPSERT, to_row(before))
        db.execute(UPSERT, to_row(written))
        (row,) = db.execute(SELECT).fetchall()
    assert from_row(row, {}) == written


def test_equal_specs_of_one_read_are_shared():
    specs = {}
    one, other, third = (
        from_row(to_row(made), specs) for made in (job(1, gpus=2), job(2, gpus=2), job(3, gpus=3))
    )
    assert one.spec is other.spec
    assert third.spec is not one.spec
