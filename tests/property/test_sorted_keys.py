"""The set of sorted keys beside Python's sorted set of the same operations."""

import random
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from gflow.core.state.sorted_keys import SortedKeys

KEYS = st.integers(1, 60)


def filled(keys, block=3):
    made = SortedKeys(block)
    for key in keys:
        made.add(key)
    return made


def is_equal(made, model):
    assert list(made) == sorted(model)
    assert list(reversed(made)) == sorted(model, reverse=True)
    assert (len(made), bool(made), made.first()) == (len(model), bool(model), min(model, default=None))
    assert made.slice(1, 5) == sorted(model)[1:5] and made.slice(7, 4) == []
    assert made.slice(0, len(made)) == sorted(model)
    assert all((key in made) == (key in model) for key in range(62))
    assert all(made._blocks) and [block[0] for block in made._blocks] == made._firsts


@given(st.lists(st.tuples(st.sampled_from(["toggle", "after", "absorb"]), KEYS, st.sets(KEYS))))
def test_sorted_keys_equal_a_sorted_set(operations):
    made, model = SortedKeys(3), set()
    for what, key, others in operations:
        if what == "after":
            assert made.after(key, len(others)) == sorted(one for one in model if one > key)[: len(others)]
        elif what == "absorb":
            other = filled(sorted(others - model))
            made.absorb(other)
            assert list(other) == []
            model |= others
        elif key in model:
            made.remove(key)
            model.remove(key)
        else:
            made.add(key)
            model.add(key)
        is_equal(made, model)


def test_absorbed_keys_between_others_move_as_blocks():
    made, other = filled([*range(10), *range(50, 60)], 4), filled(range(20, 40), 4)
    blocks = list(other._blocks)
    made.absorb(other)
    assert list(made) == [*range(10), *range(20, 40), *range(50, 60)]
    assert any(block is blocks[0] for block in made._blocks)


def test_sorted_keys_of_a_long_queue_stay_in_short_blocks():
    made, dice = SortedKeys(), random.Random(1)
    for key in range(20_000):
        made.add(key)
    for key in dice.sample(range(20_000), 19_000):
        made.remove(key)
    for key in range(-20_000, 0):
        made.add(key)
    assert max(map(len, made._blocks)) < 2000
    assert len(made._blocks) < 60
    assert list(islice(made, 3)) == [-20_000, -19_999, -19_998]
