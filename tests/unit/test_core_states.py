from itertools import product

import pytest

from gflow.core.model import ACTIVE, FINAL, JobState
from gflow.core.transitions import TRANSITIONS, move
from gflow.errors import TransitionError

from .builders import job

EVERY_MOVE = list(product(JobState, JobState))
ALLOWED = [(before, after) for before, after in EVERY_MOVE if after in TRANSITIONS[before]]
REFUSED = [move for move in EVERY_MOVE if move not in ALLOWED]


def named(state):
    return state.value


def test_every_state_has_a_row():
    assert set(TRANSITIONS) == set(JobState)


def test_every_state_is_active_or_final():
    assert ACTIVE | FINAL == set(JobState)
    assert not ACTIVE & FINAL


@pytest.mark.parametrize("state", sorted(FINAL, key=named), ids=named)
def test_nothing_leaves_a_final_state(state):
    assert not TRANSITIONS[state]


@pytest.mark.parametrize("state", sorted(ACTIVE, key=named), ids=named)
def test_every_active_state_can_end(state):
    assert JobState.CANCELLED in TRANSITIONS[state]


def test_a_job_runs_only_out_of_the_queue():
    assert [before for before, after in ALLOWED if after is JobState.RUNNING] == [JobState.QUEUED]


def test_every_state_can_be_reached():
    reached, line = set(), [JobState.QUEUED]
    while line:
        state = line.pop()
        if state not in reached:
            reached.add(state)
            line += TRANSITIONS[state]
    assert reached == set(JobState)


@pytest.mark.parametrize(("before", "after"), ALLOWED, ids=named)
def test_move_takes_a_transition_of_the_table(before, after):
    moved = job(state=before, reason="old")
    move(moved, after, "new")
    assert (moved.state, str(moved.reason)) == (after, "new")


def test_move_without_a_reason_clears_the_old_one():
    moved = job(reason="old")
    move(moved, JobState.RUNNING)
    assert str(moved.reason) == ""


@pytest.mark.parametrize(("before", "after"), REFUSED, ids=named)
def test_move_refuses_any_other_and_changes_nothing(before, after):
    kept = job(42, state=before, reason="old")
    with pytest.raises(TransitionError, match=f"job 42 cannot go from {before.value} to {after.value}"):
        move(kept, after, "new")
    assert (kept.state, str(kept.reason)) == (before, "old")
