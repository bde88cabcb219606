"""The queue snapshot of a forecast: a long queue is represented by a sample of its jobs."""

from __future__ import annotations

from random import Random

import pytest

from gflow.core.engine import step
from gflow.core.forecast import queue_snapshot as lines
from gflow.core.forecast.queue_simulation import EXPECTED, QueueSimulation
from gflow.core.forecast.queue_snapshot import (
    MOST_FAR,
    MOST_NEAR,
    MOST_OLDEST,
    Member,
    QueueSnapshot,
    Waiting,
    waiting_jobs,
)
from gflow.core.forecast.start_time import eta_query_of
from gflow.core.ids import number_of
from gflow.core.model import Job
from gflow.core.policy import Policy
from gflow.core.state.state import State
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry

GPUS = 8


def waiting(count: int) -> State:
    """So many of seven kinds wait behind one that has all GPUs."""
    random = Random(3)
    lengths = (600.0, 1800.0, 3600.0, 5400.0, 7200.0, 20_000.0, 50_000.0)
    entries = [Entry(0.0, 3600.0, GPUS)]
    for place in range(count):
        kind = random.randrange(7) if place else 6
        entries.append(Entry(10.0 + place, lengths[kind], 1 + kind % GPUS, name=f"kind-{kind}"))
    replay = Replay(entries, GPUS, Policy(fair_share=False), exact=True)
    for entry in entries:
        step(replay.state, replay._submission(entry, entry.submit))
    return replay.state


def member(snapshot: QueueSnapshot, state: State, job: Job) -> Member:
    group = snapshot.copy_of(state.ready.group_of(job), job.key)
    assert group is not None
    return job.key, group


def played(state: State, now: float, job: Job | None = None) -> QueueSimulation:
    """The queue simulated, with this job in any case."""
    snapshot = QueueSnapshot.of(state, now)
    return QueueSimulation(
        snapshot, EXPECTED, waiting_jobs(snapshot, True, job and member(snapshot, state, job))
    )


def work(who: list[Waiting]) -> float:
    return sum(one.count * one.expected * one.size for one in who)


def test_short_queue_is_not_sampled() -> None:
    state = waiting(MOST_NEAR + MOST_FAR - 1)
    who = waiting_jobs(QueueSnapshot.of(state, 0.0), True)
    assert sorted(one.key for one in who) == sorted(state.ready.where)
    assert {one.count for one in who} == {1}


def test_long_queue_is_sampled() -> None:
    count = 6000
    state = waiting(count)
    last = state.jobs[(count + 1) << 20]
    snapshot = QueueSnapshot.of(state, 0.0)
    who = waiting_jobs(snapshot, True, member(snapshot, state, last))
    assert len({one.key for one in who}) == len(who) <= MOST_NEAR + MOST_FAR + MOST_OLDEST + 1
    assert [one.count for one in who if one.key == last.key] == [1]
    oldest = min(who, key=lambda one: one.key)
    assert (number_of(oldest.key), oldest.count) == (2, 1), "who has waited longest is one of them"
    everything = sum(
        len(group.members) * group.length * group.key.shape.gpus for group in state.ready.groups.values()
    )
    assert sum(one.count for one in who) == pytest.approx(count, rel=0.01)
    assert work(who) == pytest.approx(everything, rel=0.02)
    assert not waiting_jobs(QueueSnapshot.of(state, 0.0), False), "no job waits for CPUs alone"


def test_queue_of_distinct_jobs_is_sampled() -> None:
    count = 5000
    entries = [Entry(0.0, 3600.0, GPUS)]
    entries += [Entry(1.0, 600.0 + place, 1, name=f"work-{place}") for place in range(count)]
    replay = Replay(entries, GPUS, Policy(fair_share=False), exact=True)
    for entry in entries:
        step(replay.state, replay._submission(entry, entry.submit))
    who = waiting_jobs(QueueSnapshot.of(replay.state, 0.0), True)
    assert len(who) <= MOST_NEAR + MOST_FAR + MOST_OLDEST
    assert sum(one.count for one in who) == pytest.approx(count, rel=0.01)


def test_impossible_job_is_not_in_the_snapshot() -> None:
    state = waiting(50)
    state.machine.restrict(frozenset({0, 1}))
    assert {one.size for one in waiting_jobs(QueueSnapshot.of(state, 0.0), True)} == {1, 2}


def test_equal_jobs_keep_their_order() -> None:
    entries = [Entry(0.0, 60.0, GPUS), *(Entry(1.0, 60.0, GPUS, name=name) for name in ("one", "two", "one"))]
    replay = Replay(entries, GPUS, Policy(fair_share=False), exact=True)
    for entry in entries:
        step(replay.state, replay._submission(entry, entry.submit))
    starts = played(replay.state, 1.0).all()
    assert min(starts, key=lambda key: starts[key]) == 2 << 20


def test_sampled_forecast_is_near_the_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    state = waiting(5000)
    now = 6000.0
    for number in (40, 1000, 2000, 5001):
        job = state.jobs[number << 20]
        some = played(state, now, job).start_of(job.key)
        with monkeypatch.context() as patch:
            patch.setattr(lines, "MOST_NEAR", 10**6)
            every = played(state, now, job).start_of(job.key)
        assert some is not None
        assert every is not None
        assert some - now == pytest.approx(every - now, rel=0.2)


def test_forecast_of_a_long_queue_counts_all_jobs() -> None:
    """Not only the jobs that are simulated one by one."""
    state = waiting(5000)
    job = state.jobs[5001 << 20]
    case = eta_query_of(state, job, 6000.0).case()
    assert case is not None
    older = sum(
        len(group.members) * group.length * group.key.shape.gpus for group in state.ready.groups.values()
    )
    assert case.worst_s > 0.2 * older / GPUS
