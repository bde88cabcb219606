"""Runtime estimates from finished jobs."""

import signal
from contextlib import contextmanager
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.model import Spec
from gflow.core.state import runtime_estimates
from gflow.core.state.runtime_estimates import SPAN_S, UNKNOWN_S, RuntimeEstimates
from gflow.core.sweep_template import fill_spec

from .builders import ended, running

times = st.floats(0.001, 1e6, allow_nan=False, allow_infinity=False)


@contextmanager
def within(seconds):
    """What does not end is a failure, not a hang."""

    def over(*_):
        pytest.fail("it does not end")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def at_its_end(length, began):
    """A history at the very moment at which a job has run as long as one before it."""
    history = RuntimeEstimates()
    history.learn(ended(1, started_at=0.0, finished_at=length, gpus=1))
    job = running(2, 0, started_boot=began)
    batch = history.started(job)
    with within(5):
        history.pass_time(began + length)
    return batch


def test_a_prediction_that_is_reached_grows():
    batch = at_its_end(100.0, 50.0)
    assert (batch.length, batch.due) == (400.0, 450.0)


def known(lengths, *, name="", wait_days=0.0):
    """What is expected of a job when others like it took so long; each with its day of submission."""
    history = RuntimeEstimates()
    for number, (day, length) in enumerate(lengths, 1):
        begin = day * 86400.0
        times = {"submitted_at": begin, "started_at": begin, "finished_at": begin + length}
        history.learn(ended(number, gpus=1, command=(), name=name, **times))
    batch = history.batch_of(running(99, 0, submitted_at=wait_days * 86400.0, command=(), name=name))
    history.look_at(batch)
    return batch.length, batch.is_known


def test_three_in_four_of_the_same_half_day_took_no_longer():
    assert known([(0.0, 60.0), (0.1, 10.0), (0.2, 20.0), (0.3, 1000.0)]) == (60.0, True)
    assert known([(0.0, 60.0), (0.1, 10.0)]) == (60.0, True)


def test_half_days_nearby_say_more_than_those_far_off():
    assert known([(0.0, 60.0), (2.0, 10.0)], wait_days=0.5) == (60.0, True)
    assert known([(0.0, 60.0), (4.0, 10.0)], wait_days=3.0) == (10.0, True)
    assert known([(0.0, 60.0)], wait_days=7.0) == (60.0, True)


def test_old_estimates_are_kept_for_named_jobs_only():
    assert known([(0.0, 60.0)], wait_days=8.0) == (7200.0, False)
    assert known([(0.0, 60.0)], name="train", wait_days=8.0) == (60.0, True)


def test_the_jobs_of_a_named_sweep_are_the_same_work():
    template = Spec(command=("python", "train.py", "--lr", "{lr}"), name="lr{lr}", cwd="/", gpus=1)
    done, waiting = (msgspec.structs.asdict(fill_spec(template, {"lr": lr})) for lr in ("0.1", "0.2"))
    assert (done["name"], waiting["name"]) == ("lr0.1", "lr0.2")
    history = RuntimeEstimates()
    history.learn(ended(1, started_at=0.0, finished_at=5.0, **done))
    batch = history.batch_of(ended(2, **waiting))
    history.look_at(batch)
    assert (batch.length, batch.is_known) == (5.0, True)


def learnt(jobs, *, gpus=1, **waiting):
    """What is expected of a job after these have ended: (name, GPUs, submitted, run time) of each."""
    history = RuntimeEstimates()
    for number, (name, width, begin, length) in enumerate(jobs, 1):
        times = {"submitted_at": begin, "started_at": begin, "finished_at": begin + length}
        history.learn(ended(number, gpus=width, command=(), name=name, **times))
    batch = history.batch_of(running(99, *range(gpus), command=(), **waiting))
    history.look_at(batch)
    return batch.length


def test_runs_of_a_sweep_predict_each_other_whatever_their_names():
    """Twenty of 200 runs have ended, each with a name of its own: at least four in five of the others take
    between half of what is expected and twice as much (the estimate is an upper quartile)."""
    random = Random(1)
    lengths = [3600.0 * random.lognormvariate(0.0, 0.3) for _ in range(200)]
    for template in ("run-{}", "seed{}_lr0.1", "lr{}e-4"):
        jobs = [(template.format(n), 1, 10.0, length) for n, length in enumerate(lengths)]
        found = [
            learnt(jobs[:20], name=name, submitted_at=begin) / length for name, _, begin, length in jobs[20:]
        ]
        assert sum(0.5 <= ratio <= 2.0 for ratio in found) >= 0.8 * len(found)


def test_a_name_that_is_known_counts_more_than_names_that_are_alike():
    jobs = [("resnet50", 1, 0.0, 60.0), ("resnet101", 1, 0.0, 600.0)]
    assert learnt(jobs, name="resnet50", submitted_at=1000.0) == 60.0
    assert learnt(jobs, name="resnet18", submitted_at=1000.0) == 600.0
    assert learnt(jobs, name="resnet50", submitted_at=30.0) == 600.0, "it was not known yet"


def test_unknown_work_is_expected_to_take_as_long_as_the_users_other_jobs():
    """Those of earlier half days: the estimate does not change with each end."""
    jobs = [("train", 1, 0.0, 60.0), ("train", 2, 0.0, 600.0)]
    assert learnt(jobs, name="new", submitted_at=SPAN_S) == 60.0
    assert learnt(jobs, name="new", submitted_at=100 * SPAN_S, gpus=2) == 600.0
    assert learnt(jobs, name="new", submitted_at=SPAN_S, gpus=4) == UNKNOWN_S
    assert learnt(jobs, name="new", submitted_at=100.0) == UNKNOWN_S


def test_unknown_work_may_take_as_long_as_the_longest_of_the_users_other_jobs():
    """Each run has a name of its own in letters: most take a minute, and any of them may be a long one."""
    history = RuntimeEstimates()
    for number, (name, width, length) in enumerate([("ab", 1, 60.0)] * 5 + [("cd", 1, 9e4), ("ef", 2, 1e5)]):
        times = {"submitted_at": 0.0, "started_at": 0.0, "finished_at": length % 4e4}
        history.learn(ended(number + 1, gpus=width, command=(), name=name, **times | {"ran_s": length}))
    new = history.batch_of(running(99, 0, submitted_at=SPAN_S, command=(), name="gh"))
    assert (history.length(0, new), history.longest(0, new)) == (60.0, 9e4)
    assert history.longest(900, new) == 900, "nothing is known of it but its limit"
    same = history.batch_of(running(99, 0, submitted_at=SPAN_S, command=(), name="ab"))
    assert history.longest(0, same) == 60.0
    first = history.batch_of(running(99, 0, submitted_at=1.0, command=(), name="gh"))
    assert history.longest(0, first) == UNKNOWN_S, "it does not change with each end of its half day"


def test_an_end_that_is_reported_late_changes_the_estimate_of_waiting_unknown_work():
    """After a restart the estimate counts that end, so that it does before, too."""
    history = RuntimeEstimates()
    new = history.batch_of(running(99, 0, submitted_at=2 * SPAN_S, command=(), name="new"))
    history.look_at(new)
    new.waiting = 1
    times = {"submitted_at": 0.0, "started_at": 0.0, "finished_at": 60.0}
    history.learn(ended(1, gpus=1, command=(), name="old", **times))
    assert (new.length, history.changed) == (60.0, {new})


def test_the_order_in_which_ends_come_makes_no_difference():
    lengths = [(0.1 * place, float(length)) for place, length in enumerate((5, 100, 7, 7))]
    assert known(lengths) == known(lengths[::-1]) == (7.0, True)


def test_a_sum_that_rounds_otherwise_than_the_difference():
    """`began + length - began` is less than `length` here."""
    batch = at_its_end(4894.528485633404, 346868.30408343876)
    assert batch.length == 4 * 4894.528485633404


@given(times, times)
def test_due_time_is_in_the_future(length, began):
    batch = at_its_end(length, began)
    assert batch.due > began + length


@pytest.mark.parametrize(
    ("name", "is_learnt", "expected"),
    [
        ("train", True, 60.0),  # the same work took less than its limit
        ("train", False, 900),  # nothing is known of it but its limit
        ("", True, 900),  # other work with as many GPUs says nothing about this
    ],
)
def test_a_limit_counts_unless_the_same_work_is_known(name, is_learnt, expected):
    history = RuntimeEstimates()
    times = {"submitted_at": 0.0, "started_at": 0.0, "finished_at": 60.0}
    if is_learnt:
        history.learn(ended(1, gpus=1, command=(), name=name, **times))
    batch = history.batch_of(running(2, 0, submitted_at=0.0, command=(), name=name))
    history.look_at(batch)
    assert history.length(900, batch) == expected
    assert history.length(30, batch) == 30
    assert history.longest(900, batch) == expected


spans = st.integers(0, 40)


@given(st.lists(st.tuples(spans, st.floats(1, 1e5)), max_size=12), st.sets(spans, max_size=6), st.booleans())
def test_dependent_estimates_are_updated(ends, waiting, is_named):
    """The stored estimate of waiting jobs equals one that is computed now."""
    kind = (1001, "train" if is_named else "", 1)
    history = RuntimeEstimates()
    batches = [history.batch(kind, span) for span in waiting]
    for batch in batches:
        batch.waiting = 1
    for number, (span, length) in enumerate(ends, 1):
        begin = span * SPAN_S
        times = {"submitted_at": begin, "started_at": begin, "finished_at": begin + length}
        history.learn(ended(number, gpus=1, command=(), name=kind[1], **times))
        told = [(batch.length, batch.is_known) for batch in batches]
        for batch in batches:
            history.look_at(batch)
        assert told == [(batch.length, batch.is_known) for batch in batches]


def test_kinds_without_jobs_are_forgotten_when_there_are_many(monkeypatch):
    """Each run has a name of its own in letters, for years."""
    monkeypatch.setattr(runtime_estimates, "KEPT_KINDS", 50)
    history = RuntimeEstimates()
    waiting = history.batch_of(ended(1, gpus=1, command=(), name="waiting"))
    waiting.waiting = 1
    history.started(running(2, 0, command=(), name="running"))
    for number in range(3, 1000):
        name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        times = {"submitted_at": 9.0 * number, "started_at": 9.0 * number, "finished_at": 9.0 * number + 7.0}
        history.learn(ended(number, gpus=1, command=(), name=name, **times))
        often = ended(
            number, gpus=1, command=(), name="often", **times | {"ran_s": 9e4 if number == 3 else 7.0}
        )
        history.learn(often)
    tables = (history.kinds, history._endless, history._known_since, history._longest)
    assert max(map(len, tables)) <= 102
    names = {kind[1] for kind in history.kinds}
    assert {"waiting", "running", name} < names
    assert history.longest(0, history.batch_of(often)) == 9e4
    assert history.batch(waiting.kind, waiting.span) is waiting
