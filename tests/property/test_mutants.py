"""Mutation tests of the property tests: engines with a known fault do not survive them."""

from __future__ import annotations

import itertools

import pytest

from gflow.core.forecast import explain
from gflow.core.lifecycle import finish, submit
from gflow.core.model import Job, JobState
from gflow.core.scheduling import placement, preemption
from gflow.core.state import dependencies, queue, state
from gflow.core.state.dependencies import Wait
from tests.property import world
from tests.property.fuzz import Found, run_world

# How long a fault may stay hidden: a tenth of what the default run looks at. (Most take about 50.)
MOST_STEPS = 5000
WORLD_STEPS = 200
SEEDS = range(5)


def steps_until_caught(seed: int) -> tuple[int, str]:
    """How many steps, in one world after the other, until something is noticed; and what."""
    steps = 0
    for number in itertools.count():
        try:
            steps += run_world(seed, number, WORLD_STEPS).steps
        except Found as found:
            return steps + found.steps, str(found.error)
        assert steps < MOST_STEPS, "not caught"
    raise AssertionError("unreachable")


def double_booked(monkeypatch):
    """A GPU that a job has is given to the next one."""

    def available(state, shape):
        machine = state.machine
        usable = [index for index in machine.gpus if machine.allowed is None or index in machine.allowed]
        return [index for index in usable if placement.suits(machine.gpus[index], shape)]

    monkeypatch.setattr(placement, "available", available)
    return ("GPU", "holders", "could start")


def dependency_ignored_after_restart(monkeypatch):
    """A daemon that comes back takes every waiting job for ready."""

    class Careless(Wait):
        @classmethod
        def of(cls, spec, outcome, has_begun):
            return Wait(set(), None, None)

    monkeypatch.setattr(state, "Wait", Careless)
    return ("memory and store differ",)


def dependency_ignored_without_comparison(monkeypatch):
    """The same, seen only by what the daemon does then."""
    dependency_ignored_after_restart(monkeypatch)
    monkeypatch.setattr(world, "assert_same", lambda one, other, what: None)
    return ("same events, other effects", "parents", "dependencies", "in vain", "could start", "one state")


def failure_taken_for_an_end(monkeypatch):
    """A job that depends on a failure starts after a success too."""
    monkeypatch.setattr(dependencies, "FAILURE", 0)
    return ("dependencies", "parents", "in vain", "memory and store differ")


def start_not_noticed(monkeypatch):
    """Jobs that depend on a start are not told of it."""
    monkeypatch.setattr(finish, "release_started", lambda state, at, effects: False)
    return ("a start that has happened", "parents")


def singleton_of_its_submission(monkeypatch):
    """A singleton waits for jobs of its own submission alone."""
    monkeypatch.setattr(submit, "_active_jobs_named", lambda state, uid, name: [])
    return ("singleton",)


def round_that_skips(monkeypatch):
    """A round ends at the first job that does not fit, though others would."""
    original = queue.Walk.next
    monkeypatch.setattr(queue.Walk, "next", lambda self, room: None if self._aside else original(self, room))
    return ("could start",)


def impatient(monkeypatch):
    """A job is tried again at once, whatever pause it asked for."""
    monkeypatch.setattr(finish, "retry_delay_s", lambda job: 0)
    return ("pauses wrongly",)


def paused_by_the_wall_clock(monkeypatch):
    """A change of the wall clock moves retries."""
    original = Job.set_retry_delay
    monkeypatch.setattr(
        Job, "set_retry_delay", lambda self, delay_s, at: original(self, delay_s, at._replace(boot=at.wall))
    )
    return ("pauses wrongly", "wrong about its begin time", "in `later`")


def timed_wrongly(monkeypatch):
    """A job ran for another time than the boot clock says."""
    monkeypatch.setattr(Job, "run_s", lambda self, boot: 0.0)
    return ("did not run for so long",)


def tried_again_whatever_happened(monkeypatch):
    """--retry-on is not looked at."""
    monkeypatch.setattr(finish, "_is_retryable", lambda kinds, event, to: not kinds and to is JobState.FAILED)
    return ("wanted to be tried again", "left with", "starts and was cancelled")


def anything_comes(monkeypatch):
    """A job may wait for a neighbour that there is not."""
    monkeypatch.setattr(submit, "_is_submitted_before", lambda *about: True)
    return (
        "has children",
        "no active",
        "not resolvable",
        "is not",
        "exist",
        "memory and store differ",
        "circle",
    )


def silent(monkeypatch):
    """A job that waits for a drained GPU is told that there are no resources, and no more."""
    monkeypatch.setattr(explain, "_blockade", lambda state, shape: "")
    return ("there is no blocker",)


def equals_make_way(monkeypatch):
    """Preemptible jobs stop each other, round and round."""
    monkeypatch.setattr(
        preemption, "may_preempt", lambda mine, yours: mine.spec.priority <= yours.spec.priority
    )
    return ("does not come before it",)


def way_in_vain(monkeypatch):
    """Jobs are stopped for a job that cannot start all the same."""
    original = preemption._victims
    monkeypatch.setattr(
        preemption, "_victims", lambda state, job, usable, lacking: original(state, job, usable, lacking - 1)
    )
    return ("does not fit all the same",)


MUTANTS = (
    equals_make_way,
    way_in_vain,
    silent,
    impatient,
    paused_by_the_wall_clock,
    timed_wrongly,
    tried_again_whatever_happened,
    anything_comes,
    double_booked,
    dependency_ignored_after_restart,
    dependency_ignored_without_comparison,
    failure_taken_for_an_end,
    start_not_noticed,
    singleton_of_its_submission,
    round_that_skips,
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant, seed, monkeypatch, record_property):
    signs = mutant(monkeypatch)
    steps, noticed = steps_until_caught(seed)
    record_property("steps", steps)
    assert any(sign in noticed for sign in signs), noticed


@pytest.mark.parametrize("seed", SEEDS)
def test_the_engine_as_it_is_survives(seed):
    for number in range(2):
        assert run_world(seed, number, WORLD_STEPS).steps >= WORLD_STEPS
