"""A listing is of one moment, also when the queue changes while it is made."""

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.ids import job_key
from gflow.core.model import ArrayProgress, JobState
from gflow.core.queries.job_filter import Filter
from gflow.core.state.state import State
from gflow.core.task_set import parse_tasks
from gflow.daemon.api import job_search
from gflow.daemon.api.job_search import ListingRequest, find
from gflow.daemon.loop.cooperative import SLICE, in_order
from gflow.daemon.loop.user_threads import Threads
from gflow.errors import Refused
from gflow.store.port import Changes
from gflow.store.reader import Reader
from gflow.store.sqlite import SqliteStore

from .builders import NOON, ended, job, running

COUNT = 5 * SLICE


class Loop:
    """As much of the loop as a listing needs."""

    def __init__(self, jobs):
        self.state = State(cpus=4, memory_mib=1000)
        for one in jobs:
            self.state.add(one)
        self.sets = []

    @contextmanager
    def track_changes(self):
        self.sets.append(set())
        yield self.sets[-1]

    def change(self, key):
        for changed in self.sets:
            changed.add(key)


def listed(loop, change=lambda turn: None, store=None, **asked):
    """The jobs of a listing, while `change` is called once in every turn of asyncio."""

    async def main():
        context = SimpleNamespace(loop=loop, store=store, threads=Threads())
        looking = asyncio.ensure_future(
            find(context, ListingRequest(**{"wanted": Filter(), "is_past": False} | asked), NOON)
        )
        for turn in range(10_000):
            if looking.done():
                break
            change(turn)
            await asyncio.sleep(0)
        found = await looking
        return [entry[0] for entry in found.entries], found.total, found.is_cut

    return asyncio.run(main())


def test_two_jobs_never_have_the_same_gpu_in_one_listing():
    """A GPU goes from one end of the list to the other and back, in every turn."""
    loop = Loop([running(1, 0), *(job(number, gpus=1) for number in range(2, COUNT))])
    first, last = loop.state.jobs[job_key(1)], loop.state.jobs[job_key(COUNT - 1)]

    def hand_over(turn):
        gives, takes = (first, last) if turn % 2 else (last, first)
        gives.state, gives.gpu_ids = JobState.QUEUED, ()
        takes.state, takes.gpu_ids = JobState.RUNNING, (0,)
        if turn < 40:
            loop.change(gives.key)
            loop.change(takes.key)

    for turns in range(1, 12):
        jobs, total, _ = listed(loop, lambda turn, turns=turns: turn <= turns and hand_over(turn))
        assert [one.label for one in jobs if one.gpu_ids] in (["1"], [str(COUNT - 1)])
        assert total == len(jobs) == COUNT - 1


def test_listing_has_changed_jobs_whole_or_not_at_all():
    loop = Loop([job(number) for number in range(1, COUNT)])

    def change(turn):
        if turn == 2:
            for number in (1, COUNT - 1):
                loop.state.drop(loop.state.jobs[job_key(number)])
                loop.change(job_key(number))
            loop.state.add(job(COUNT))
            loop.change(job_key(COUNT))

    jobs, total, _ = listed(loop, change)
    assert [one.number for one in jobs] == [*range(2, COUNT - 1), COUNT]
    assert total == COUNT - 2


def test_rebuilt_state_restarts_the_listing():
    loop, other = Loop([job(number) for number in range(1, COUNT)]), Loop([job(7)])

    def change(turn):
        if turn == 2:
            loop.state = other.state

    assert [one.number for one in listed(loop, change)[0]] == [7]


def test_listed_job_does_not_change_afterwards():
    loop = Loop([job(1)])
    ((shown,), _, _) = listed(loop)
    loop.state.jobs[job_key(1)].state = JobState.HOLD
    assert shown.state is JobState.QUEUED


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"limit": 2}, [1, 2]),
        ({"limit": -2}, [4, 5]),
        ({"limit": 0, "offset": 3}, [4, 5]),
        ({"limit": 2, "offset": 1}, [2, 3]),
        ({"limit": -2, "offset": 1}, [3, 4]),
        ({"limit": 9}, [1, 2, 3, 4, 5]),
        ({"limit": -9}, [1, 2, 3, 4, 5]),
        ({"offset": 9, "limit": 1}, []),
        ({"is_reversed": True}, [5, 4, 3, 2, 1]),
        ({"is_reversed": True, "limit": 2}, [5, 4]),
        ({"is_reversed": True, "limit": -2}, [2, 1]),
        ({"sort": "name"}, [5, 4, 3, 2, 1]),
        ({"sort": "name", "limit": -2}, [2, 1]),
        ({"sort": "name", "limit": 2, "offset": 1}, [4, 3]),
        ({"sort": "name", "is_reversed": True, "limit": 2}, [1, 2]),
    ],
    ids=str,
)
def test_the_part_that_is_asked_for(tmp_path, asked, numbers):
    jobs = [job(number, name=f"n{9 - number}") for number in range(1, 6)]
    found, total, is_cut = listed(Loop(jobs), **asked)
    assert ([one.number for one in found], total, is_cut) == (numbers, 5, False)
    # And the same from the database.
    store = SqliteStore(tmp_path / "gflow.db")
    store.commit(Changes(jobs={one.key: one for one in jobs}))
    found, total, is_cut = listed(Loop(jobs), store=store, is_past=True, **asked)
    assert ([one.number for one in found], total, is_cut) == (numbers, 5, False)
    store.close()


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({"limit": 3}, [1, 2, 3]),
        ({"limit": -3, "offset": 2}, [COUNT - 5, COUNT - 4, COUNT - 3]),
        ({"limit": 3, "is_reversed": True}, [COUNT - 1, COUNT - 2, COUNT - 3]),
    ],
    ids=str,
)
def test_limited_listing_copies_no_more_than_it_shows(monkeypatch, asked, numbers):
    copied = []
    monkeypatch.setattr(job_search, "explain", lambda state, job, now, reasons: copied.append(job.key))
    found, total, _ = listed(Loop([job(number) for number in range(1, COUNT)]), **asked)
    assert ([one.number for one in found], total) == (numbers, COUNT - 1)
    assert len(copied) == 3


@pytest.mark.parametrize(("limit", "labels"), [(2, ["1", "2_1"]), (-2, ["4", "5"])])
def test_limited_listing_hides_arrays_whose_tasks_have_all_started(limit, labels):
    array = {"array": "0-2", "progress": ArrayProgress(pending=parse_tasks(""))}
    waiting = ArrayProgress(pending=parse_tasks("0,2"))
    jobs = [job(1), job(2, **array), job(2, task=1), job(3, **array), job(4, progress=waiting), job(5)]
    for one in ({}, {"wanted": Filter(since=1.0)}):  # by the order of keys, and by a look at all jobs
        found, total, _ = listed(Loop(jobs), limit=limit, **one)
        assert ([entry.label for entry in found], total) == (labels, 4)


def test_limited_listing_shows_one_moment():
    """What is shown goes and what comes takes its place, in every turn; the last change counts."""
    loop = Loop([job(number) for number in range(1, COUNT)])

    def change(turn):
        if 1 <= turn <= 20:
            loop.state.drop(loop.state.jobs[job_key(turn)])
            loop.change(job_key(turn))

    for limit in (2, 2 * SLICE):
        loop = Loop([job(number) for number in range(1, COUNT)])
        jobs, total, _ = listed(loop, change, limit=limit)
        first = jobs[0].number
        assert [one.number for one in jobs] == list(range(first, first + limit))
        assert total == COUNT - first


def test_listing_of_past_shows_newest_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(job_search, "NEWEST", 2)
    jobs = [job(1), *(ended(number) for number in range(2, 7))]
    store = SqliteStore(tmp_path / "gflow.db")
    store.commit(Changes(jobs={one.key: one for one in jobs}))
    loop = Loop(jobs[:1])
    found, total, is_cut = listed(loop, store=store, is_past=True)
    assert ([one.number for one in found], total, is_cut) == ([1, 5, 6], 6, True)
    assert len(listed(loop, store=store, is_past=True, limit=0)[0]) == 6
    monkeypatch.setattr(job_search, "MOST", 4)
    with pytest.raises(Refused, match="6 jobs"):
        listed(loop, store=store, is_past=True, limit=0)
    assert len(listed(loop, store=store, is_past=True, limit=4, offset=2)[0]) == 4
    store.close()


def test_too_many_active_jobs_are_refused_before_they_are_read(tmp_path, monkeypatch):
    jobs = [job(number) for number in range(1, 7)]
    store = SqliteStore(tmp_path / "gflow.db")
    store.commit(Changes(jobs={one.key: one for one in jobs}))
    monkeypatch.setattr(job_search, "MOST", 5)
    monkeypatch.setattr(Reader, "recent", None)
    with pytest.raises(Refused, match="6 jobs match, and one listing holds at most 5"):
        listed(Loop(jobs), store=store, is_past=True)
    store.close()


@given(st.lists(st.integers(), max_size=5000), st.booleans())
def test_sorting_in_slices_is_sorting(items, reverse):
    async def main():
        return list(await in_order(items, lambda item: item, reverse=reverse))

    assert asyncio.run(main()) == sorted(items, reverse=reverse)
