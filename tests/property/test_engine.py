"""The engine's laws hold for any events in any order.

The rules of the machine are the operations of `operations`; what must hold is in `world` and
`reference_model`. `GFLOW_SEED=7 pytest tests/property` looks elsewhere than the default run does; a
million steps are `python -m tests.property.fuzz --steps 1000000`.
"""

from __future__ import annotations

import os
from collections import Counter
from string import ascii_lowercase

import pytest
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from gflow.store.sqlite import SqliteStore
from tests.property import operations
from tests.property.dice import Drawn
from tests.property.fuzz import run_world
from tests.property.world import World

SEED = int(os.environ.get("GFLOW_SEED", "0"))
# Four parts, so that as many cores can share them.
PARTS = 4
# `make test` takes a share of the steps, `make test-slow` all of them.
STEPS = 5_000
ALL_STEPS = 20_000
MOST_SEARCHES = 20
EXAMPLE_STEPS = 60
SETTINGS = settings(
    max_examples=STEPS // PARTS // EXAMPLE_STEPS + 20,
    stateful_step_count=EXAMPLE_STEPS,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


class EngineMachine(RuleBasedStateMachine):
    """The world, with hypothesis throwing the dice."""

    taken = Counter[str]()

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.is_sound = True

    def teardown(self) -> None:
        if self.is_sound:
            self.world.restart()


def _rule_of(operation, name: str):
    def step(self: EngineMachine, data: st.DataObject) -> None:
        type(self).taken[operation.__name__] += 1
        try:
            operations.act(self.world, Drawn(data), operation)
        except Exception:
            self.is_sound = False
            note(f"  {self.world.event_log()}")
            raise

    step.__name__ = name
    return rule(data=st.data())(step)


# What happens often has several rules. The first in the alphabet, `a_submit`, needs fewer: hypothesis
# comes back to it by itself.
for _place, (_weight, _operation) in enumerate(operations.OPERATIONS):
    for _copy in range((_weight + 1) // (2 if _place else 4)):
        _name = f"{ascii_lowercase[_place]}_{_operation.__name__}"
        setattr(EngineMachine, f"{_name}_{_copy}", _rule_of(_operation, _name))


@pytest.mark.parametrize("part", range(PARTS))
def test_laws_hold_in_generated_worlds(part):
    search_for_violations(part, STEPS // PARTS)


@pytest.mark.slow
def test_the_laws_hold_in_a_long_search():
    search_for_violations(PARTS, ALL_STEPS - STEPS)


def search_for_violations(part: int, steps: int) -> None:
    machine = type("Machine", (EngineMachine,), {"taken": Counter()})
    # hypothesis may end an example, or a search, before its time; a rare operation may need another search
    for search in range(MOST_SEARCHES):
        run_state_machine_as_test(seed((SEED + search) * (PARTS + 1) + part)(machine), settings=SETTINGS)
        if machine.taken.total() >= steps and len(machine.taken) == len(operations.OPERATIONS):
            break
    assert len(machine.taken) == len(operations.OPERATIONS), f"something never happened: {machine.taken}"


@pytest.mark.parametrize("number", range(4))
def test_the_laws_hold_in_long_runs(number):
    world = run_world(SEED, number, 1500)
    assert world.refusals > 50 and world.restarts > 10, "the world was too quiet"


def test_store_matches_the_state(tmp_path):
    disk = SqliteStore(tmp_path / "gflow.db")
    world = run_world(SEED, 100, 1500, disk)
    disk.close()
    again = SqliteStore(tmp_path / "gflow.db")
    assert again.load() == world.store.load()
    again.close()
