"""Pages of rows: each group once, whatever the size of a page, the filter and the order."""

from contextlib import closing

import pytest

from gflow.core.ids import number_of
from gflow.core.model import JobState
from gflow.core.queries.job_filter import Filter
from gflow.errors import UsageError
from gflow.store import row_walk
from gflow.store.port import Changes
from gflow.store.row_walk import Place, walk_rows
from gflow.store.sqlite import SqliteStore

from .builders import ended, job

FAILED = JobState.FAILED
# Sweeps 2 (2 to 8) and 20 (20, 25, 40), which others run between; an array; jobs of no group.
JOBS = [
    job(1),
    *[ended(n, FAILED if n in (3, 8) else JobState.FINISHED, group=2) for n in range(2, 9)],
    ended(9, FAILED),
    job(20, group=20),
    job(21),
    ended(25, FAILED, group=20),
    *[job(n) for n in range(26, 33)],
    ended(40, FAILED, group=20),
    job(50, array="1-30", group=-50),
    *[ended(50, FAILED, task=task, group=-50, array="1-30") for task in range(1, 20)],
    job(51),
]
ALL = [1, 2, 9, 20, 21, *range(26, 33), 50, 51]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    with closing(SqliteStore(tmp_path_factory.mktemp("rows") / "gflow.db")) as store:
        store.commit(Changes(jobs={job.key: job for job in JOBS}))
        with closing(store.reader()) as reader:
            yield reader


def pages(reader, wanted, limit, *, newest):
    place, found = None, []
    while True:
        rows, place = walk_rows(reader, wanted, place, limit, newest=newest)
        assert len(rows) <= limit
        found += rows
        if place is None:
            return found
        place = Place.parse(str(place))


def ids(rows):
    return [row.group if row.group > 0 else number_of(row.first) for row in rows]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("together", [1, 3, 500])
@pytest.mark.parametrize("newest", [True, False])
def test_each_row_is_on_one_page(reader, monkeypatch, limit, together, newest):
    monkeypatch.setattr(row_walk, "TOGETHER", together)
    rows = pages(reader, Filter(), limit, newest=newest)
    assert sorted(ids(rows)) == ALL
    failed = ids(pages(reader, Filter(states=frozenset({FAILED})), limit, newest=newest))
    assert failed == ([50, 20, 9, 2] if newest else [2, 9, 20, 50])


def test_a_group_on_the_edge_of_a_page_is_a_group(reader):
    (row,), place = walk_rows(
        reader, Filter(states=frozenset({FAILED})), Place((40 << 20) + 1), 1, newest=True
    )
    assert row.group == 20 and row.count > 1 and place.groups == (20,)


def test_long_groups_do_not_hold_up_a_page(reader, monkeypatch):
    monkeypatch.setattr(row_walk, "TOGETHER", 4)
    monkeypatch.setattr(row_walk, "MOST_READ", 8)
    assert sorted(ids(pages(reader, Filter(), 100, newest=True))) == ALL


def test_place_that_is_none_is_refused():
    for text in ("x", "1.y", "-3", "1" * 30):
        with pytest.raises(UsageError):
            Place.parse(text)
