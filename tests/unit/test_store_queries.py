"""The SQL of a listing means what `Filter.matches` means."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gflow.core.ids import job_key
from gflow.core.model import FINAL, JobState
from gflow.core.queries.job_filter import Filter
from gflow.errors import StoreError
from gflow.store import reader as reader_module
from gflow.store.port import Changes
from gflow.store.reader import Reader
from gflow.store.sqlite import SqliteStore
from gflow.testing import progress

from .builders import NOON, job

NAMES, USERS, PROJECTS = ["", "a", "job-3", "it's"], ["ann", "bob"], ["", "p", "q"]
JOBS = [
    job(
        number,
        task=number % 3 - 1 if number % 2 else None,
        user=USERS[number % 2],
        name=NAMES[number % 4],
        default_name=["train.py", ""][number % 5 == 0],
        project=PROJECTS[number % 3],
        state=list(JobState)[number % 7],
        progress=[None, None, progress(""), progress("1-3")][number % 4] if number % 2 == 0 else None,
        **{"finished_at": NOON + number * 10} if list(JobState)[number % 7] in FINAL else {},
    )
    for number in range(1, 60)
    if not (number % 2 and number % 3 == 0)
]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    path = tmp_path_factory.mktemp("reading") / "gflow.db"
    store = SqliteStore(path)
    store.commit(Changes(jobs={one.key: one for one in JOBS}))
    reader = Reader(path)
    yield reader
    reader.close()
    store.close()


def some(values):
    return st.frozensets(st.sampled_from(values), max_size=3)


spans = st.tuples(st.integers(1, 60), st.integers(1, 60)).map(
    lambda ends: (job_key(ends[0]), job_key(ends[1]))
)
filters = st.builds(
    Filter,
    states=some(list(JobState)),
    users=some([*USERS, "eve"]),
    names=some([*NAMES, "job-3_1", "job-8", "train.py", "job-*", "*a*", "?", "[a-m]*", "[!a-m]*", "[", "*["]),
    projects=some(PROJECTS),
    spans=st.lists(spans, max_size=2).map(tuple),
    since=st.sampled_from([0.0, NOON, NOON + 300]),
)


@settings(max_examples=300)
@given(filters)
def test_sql_and_python_agree(reader, wanted):
    expected = [one for one in JOBS if wanted.matches(one)]
    assert [reader.job(row) for row in reader.page(wanted, -1, 0, newest=False)] == expected
    assert reader.count(wanted) == len(expected)


@given(filters, st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_pages_are_parts_of_the_whole(reader, wanted, limit, offset, newest):
    whole = [one.key for one in JOBS if wanted.matches(one)]
    end = len(whole) - offset
    part = whole[max(0, end - limit) : max(0, end)] if newest else whole[offset : offset + limit]
    assert [row[0] for row in reader.page(wanted, limit, offset, newest=newest)] == part


@given(filters, st.integers(1, 10))
def test_recent_jobs_are_active_and_newest_ended(reader, wanted, count):
    whole = [one for one in JOBS if wanted.matches(one)]
    over = [one.key for one in whole if one.is_final][-count:]
    expected = [one.key for one in whole if not one.is_final or one.key in over]
    assert [row[0] for row in reader.recent(wanted, count)] == expected


def test_a_reader_sees_one_moment_and_changes_nothing(tmp_path):
    store = SqliteStore(tmp_path / "gflow.db")
    store.commit(Changes(jobs={job(1).key: job(1)}))
    before, everything = store.reader(), Filter()
    store.commit(Changes(jobs={job(2).key: job(2)}))
    after = store.reader()
    assert (before.count(everything), after.count(everything)) == (1, 2)
    with pytest.raises(StoreError, match="cannot be read"):
        before.rows("DELETE FROM jobs")
    before.close()
    after.close()
    store.close()


def test_reader_shares_specs_of_neighbours_and_keeps_few(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "MOST_SPECS", 3)
    store = SqliteStore(tmp_path / "gflow.db")
    jobs = [job(number, name=f"n{number // 2}") for number in range(20)]
    store.commit(Changes(jobs={one.key: one for one in jobs}))
    reader = store.reader()
    read = []
    for row in reader.page(Filter(), -1, 0, newest=False):
        read.append(reader.job(row))
        assert len(reader._specs) <= 3
    assert [one.name for one in read] == [one.name for one in jobs]
    assert read[0].spec is read[1].spec
    store.close()


def test_ended_and_failed_jobs_are_read_by_their_indexes(reader, monkeypatch):
    plans, rows = [], reader.rows

    def explained(sql, values=()):
        plans.append("; ".join(row[-1] for row in rows(f"EXPLAIN QUERY PLAN {sql}", values)))
        return rows(sql, values)

    monkeypatch.setattr(reader, "rows", explained)
    ended = [reader.job(row).number for row in reader.last_ended(Filter(users=frozenset({"ann"})), 3)]
    failed = [reader.job(row).number for row in reader.failed_since(NOON, "bob", 2)]
    shown = [one for one in JOBS if one.finished_at and one.progress is None]
    bad = {JobState.FAILED, JobState.TIMEOUT}
    assert ended == [one.number for one in shown if one.user == "ann"][:-4:-1]
    assert failed == [one.number for one in shown if one.user == "bob" and one.state in bad][:-3:-1]
    assert "USING INDEX jobs_finished" in plans[0] and "USING INDEX jobs_failed" in plans[1]
    assert not any("TEMP B-TREE" in plan for plan in plans)
