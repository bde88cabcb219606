"""How long work takes, by what is known."""

import signal
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.history import History

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
    history = History()
    history.learn(ended(1, started_at=0.0, finished_at=length, gpus=1))
    job = running(2, 0, started_at=began)
    batch = history.started(job)
    with within(5):
        history.pass_time(began + length)
    return batch


def test_a_prediction_that_is_reached_is_doubled():
    batch = at_its_end(100.0, 50.0)
    assert (batch.length, batch.due) == (200.0, 250.0)


def test_a_sum_that_rounds_otherwise_than_the_difference():
    """`began + length - began` is less than `length` here."""
    batch = at_its_end(4894.528485633404, 346868.30408343876)
    assert batch.length == 2 * 4894.528485633404


@given(times, times)
def test_what_is_due_is_in_the_future(length, began):
    batch = at_its_end(length, began)
    assert batch.due > began + length
