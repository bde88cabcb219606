"""ETA calibration: the forecast intervals hold for any stream of jobs."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.forecast.queue_snapshot import QueueSnapshot
from gflow.core.forecast.start_time import SLACK_S, Listing, eta_query_of
from gflow.core.state.eta_calibration import (
    FEW,
    LEARNT_FROM,
    MOST_CASES,
    PART,
    EtaCalibration,
    EtaOutcome,
    EtaSample,
    Weighed,
    part_of,
    quantiles,
    wait_of,
)
from gflow.simulate.trace import Entry
from tests.unit.test_forecast import HOUR, stopped

TEN_HOURS = 10 * HOUR


def waited(told: EtaCalibration, part: float, count: int, start: float = 0.0) -> None:
    """So many jobs, each told of a worst wait of ten hours, that waited for this part of it."""
    for key in range(count):
        told.add_sample(key, EtaSample(start, TEN_HOURS, True))
        told.started(key, start + part * TEN_HOURS)


def latest(told: EtaCalibration, wall: float = 0.0, is_bounded: bool = True) -> float:
    """By when a job starts that waits for ten hours at worst."""
    return wait_of(told.parts(is_bounded, wall)[1], TEN_HOURS, is_bounded)


def test_eta_follows_earlier_starts() -> None:
    told = EtaCalibration()
    before = latest(told)
    waited(told, 0.9, MOST_CASES)
    middle, late = told.parts(True, 0.0)
    assert before < 5 * HOUR, "before anything is known: as on one of Philly's pools"
    assert wait_of(middle, TEN_HOURS, True) == pytest.approx(9 * HOUR, rel=0.01)
    assert wait_of(late, TEN_HOURS, True) == pytest.approx(9 * HOUR, rel=0.01)
    assert latest(told, is_bounded=False) > TEN_HOURS, "without limits it says nothing"


def test_open_samples_lengthen_the_eta() -> None:
    told = EtaCalibration()
    waited(told, 0.2, 50)
    before = latest(told)
    for key in range(50):
        told.add_sample(1000 + key, EtaSample(0.0, TEN_HOURS, True))
    assert latest(told, 9 * HOUR) > 9 * HOUR > before
    told.keep_only([])
    assert latest(told, 9 * HOUR) == before


def test_only_latest_samples_count() -> None:
    """Otherwise only the jobs that never start would be left."""
    told = EtaCalibration()
    for key in range(50):
        told.add_sample(key, EtaSample(float(key), TEN_HOURS, True))
    told.add_sample(77, EtaSample(0.0, HOUR, False))
    for key in range(1000, 1000 + MOST_CASES):
        told.add_sample(key, EtaSample(float(key), TEN_HOURS, True))
        if key % 2:
            told.started(key, key + HOUR)
    assert set(told.record.open) == {77, *range(1000, 1000 + MOST_CASES, 2)}
    assert len(told.record.over) == MOST_CASES / 2
    told.started(3, 5.0)
    assert len(told.record.over) == MOST_CASES / 2, "it is forgotten"


def test_calibration_record_reads_back() -> None:
    told, other = EtaCalibration(), EtaCalibration()
    waited(told, 0.3, 20)
    told.add_sample(77 << 20, EtaSample(5.0, HOUR, False))
    other.load(told.text())
    assert other.record == told.record
    assert other.is_learnt(True)
    assert not other.is_learnt(False)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.booleans())
def test_a_wait_is_a_part_of_the_worst_and_back(wait: float, worst: float, is_bounded: bool) -> None:
    part = part_of(wait, EtaSample(0.0, worst, is_bounded))
    assert wait_of(part, worst, is_bounded) == pytest.approx(wait, rel=1e-6, abs=1e-3)


def test_record_of_another_version_keeps_open_samples() -> None:
    told = EtaCalibration()
    told.load('{"open":{"7":[5.0,3600.0,true]},"bounded":[0.1,0.2],"unbounded":[0.3]}')
    assert told.record.open == {7: EtaSample(5.0, HOUR, True)}
    assert told.record.over == []


# ---------------------------------------------------------------- intervals hold

# Jobs come every ten minutes. The part of the worst that the given one waits for.
Stream = Callable[[int, Random], float]
STREAMS: dict[str, Stream] = {
    "stationary": lambda place, random: random.lognormvariate(-1.5, 1.0),
    "another than known": lambda place, random: random.lognormvariate(0.5, 0.3),
    "drifting": lambda place, random: random.lognormvariate(-2.5 + place / 1500, 0.6),
    "two kinds": lambda place, random: random.lognormvariate(random.choice((-2.5, -0.5)), 0.3),
    "in turns": lambda place, random: random.lognormvariate(-2.5 if place // 60 % 2 else -0.5, 0.3),
}


def hits(stream: Stream, seed: int, count: int = 1000) -> list[tuple[bool, bool]]:
    """Of jobs that come one by one: whether each started by the latest that it was told, and by the middle.
    What is told comes from what had happened by then."""
    random, told = Random(seed), EtaCalibration()
    running: list[tuple[float, int]] = []
    found = []
    for place in range(count):
        now = place * 600.0
        while running and running[0][0] <= now:
            start, key = heapq.heappop(running)
            told.started(key, start)
        worst = random.choice((HOUR, 3 * HOUR, 10 * HOUR))
        wait = stream(place, random) * worst
        middle, late = (wait_of(part, worst, True) for part in told.parts(True, now))
        found.append((wait <= late, wait <= middle))
        told.add_sample(place, EtaSample(now, worst, True))
        heapq.heappush(running, (now + wait, place))
    return found


@pytest.mark.parametrize("name", STREAMS)
def test_eight_in_ten_start_in_time(name: str) -> None:
    """And not nearly all: that would be told by saying nothing."""
    found = hits(STREAMS[name], seed=7)[MOST_CASES:]
    in_time = sum(late for late, _ in found) / len(found)
    assert 0.8 <= in_time <= 0.92
    by_the_middle = sum(middle for _, middle in found) / len(found)
    assert 0.4 <= by_the_middle <= 0.62


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 3), st.booleans()), min_size=1, max_size=60))
def test_quantiles_hold_their_part(cases: list[Weighed]) -> None:
    middle, late = quantiles(iter(cases), (0.5, PART))
    assert min(place for place, _, _ in cases) <= middle <= late
    total = sum(weight for _, weight, _ in cases)
    if all(is_there for _, _, is_there in cases):
        assert sum(weight for place, weight, _ in cases if place <= late) >= (PART - 1e-6) * total
        assert sum(weight for place, weight, _ in cases if place < late) < (PART + 1e-6) * total
    settled = quantiles(((place, weight, True) for place, weight, _ in cases), (PART,))
    assert late >= settled[0], "who still waits never makes it shorter"


# ---------------------------------------------------------------- what people are told


def test_uncalibrated_eta_contains_the_simulation() -> None:
    state, job, now = stopped([Entry(0.0, HOUR, 4), Entry(1.0, HOUR, 4)])
    found = eta_query_of(state, job, now).start()
    assert found is not None
    assert found.expected == pytest.approx(HOUR)
    assert found.latest == pytest.approx(HOUR + SLACK_S)


def test_calibrated_eta_is_used_when_learnt() -> None:
    """And a listing says the same. (No job has waited long enough for a start reservation.)"""
    first = 900.0
    entries = [Entry(0.0, first, 4), Entry(1.0, 2 * HOUR, 4), Entry(2.0, HOUR, 2), Entry(3.0, HOUR, 2)]
    state, job, now = stopped(entries)
    waited(state.eta_calibration, 0.4, MOST_CASES)
    found = eta_query_of(state, job, now).start()
    assert found is not None
    assert found.expected - now == pytest.approx(0.4 * first, abs=60)
    assert found.latest - now == pytest.approx(0.4 * first + SLACK_S, abs=60)
    starts = Listing(QueueSnapshot.of(state, now)).starts()
    assert starts[job.key] == found.expected
    assert starts[2 << 20] - now == pytest.approx(0.4 * (first + HOUR), abs=60)


def test_eta_is_unbounded_without_limits() -> None:
    """Then cases teach those like them, and only those."""
    first = Entry(0.0, HOUR, 4, limit=3600)
    for limit in (0, 7200):
        state, job, now = stopped([first, Entry(1.0, HOUR, 4, limit=limit)], exact=False)
        case = eta_query_of(state, job, now).case()
        assert case is not None
        assert case.is_bounded == (limit > 0)


def test_tight_limits_are_learnt_soon() -> None:
    """What is known beforehand says otherwise, and weighs more."""
    told = EtaCalibration()
    waited(told, 1.0, LEARNT_FROM)
    assert told.is_learnt(True)
    assert told.parts(True, 0.0) == (1.0, 1.0)
    waited(told, 0.01, FEW)
    assert told.parts(True, 0.0)[1] < 0.5, "what is known beforehand is not forgotten"


def test_a_few_cases_are_not_enough() -> None:
    told = EtaCalibration()
    waited(told, 0.4, LEARNT_FROM - 1)
    assert not told.is_learnt(True)
    told.record.over.append(EtaOutcome(0.0, 0.4, True))
    assert told.is_learnt(True)
