"""Closing in on the largest batch: few trials where the prediction is good, an end where it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.ml.train.batch_search import MOST_TRIALS, search

GIB = 1 << 30


def memory(fixed: int, slope: int, room: int):
    def attempt(batch: int) -> int | None:
        peak = fixed + slope * batch
        return peak if peak <= room else None

    return attempt


@given(
    fixed=st.integers(GIB, 8 * GIB),
    slope=st.integers(1 << 20, GIB),
    error=st.floats(-0.01, 0.01),
    room=st.integers(16 * GIB, 80 * GIB),
)
def test_a_good_prediction_needs_two_trials_at_most(fixed, slope, error, room):
    true = (room - fixed) // slope
    predicted = max(1, int(true * (1 + error)))
    found, trials = search(predicted, room, slope, memory(fixed, slope, room))
    assert found >= min(0.97 * true, true - 1) and len(trials) <= 2


@given(true=st.integers(0, 3000), predicted=st.integers(1, 5000), multiple=st.sampled_from([1, 8]))
def test_search_with_bad_prediction_ends_with_fitting_batch(true, predicted, multiple):
    slope = 10
    room = 1000 + slope * true
    found, trials = search(predicted, room, slope, memory(1000, slope, room), multiple)
    assert found <= true and found % multiple == 0 and len(trials) <= MOST_TRIALS
    assert found in [trial.batch for trial in trials if trial.peak is not None] or found == 0
    if true >= multiple and len(trials) < MOST_TRIALS:
        assert found, "something fits"


@pytest.mark.parametrize(("predicted", "found"), [(100, 96), (96, 96), (7, 96)])
def test_batches_are_of_a_size_that_is_wanted(predicted, found):
    assert search(predicted, 1000 + 1000, 10, memory(1000, 10, 2000), 8)[0] == found
