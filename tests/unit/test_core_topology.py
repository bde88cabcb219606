import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.model import Gpu
from gflow.core.policy import Policy
from gflow.core.scheduling.placement import choose, nearest_first, nearness

from .builders import running
from .test_core_placement import shape, state_with


def card(index, links=(), node=-1):
    return Gpu(
        index=index, uuid=f"GPU-{index}", model="A100", memory_mib=81920, links=tuple(links), node=node
    )


# Two islands of NVLink, woven into each other; and two nodes without any.
ISLANDS = [card(i, [j for j in range(i % 2, 8, 2) if j != i], node=i % 2) for i in range(8)]
NODES = [card(i, node=i // 2) for i in range(4)]
PAIRS = [card(0, [3]), card(1, [2]), card(2, [1]), card(3, [0]), card(4)]


def by_topology(*jobs, gpus):
    state = state_with(*jobs, gpus=gpus)
    state.policy = Policy(strategy="topology")
    return state


@pytest.mark.parametrize(
    ("gpus", "taken", "count", "chosen"),
    [
        (ISLANDS, (), 4, (0, 2, 4, 6)),
        (ISLANDS, (0,), 4, (1, 3, 5, 7)),
        (ISLANDS, (0, 1), 3, (2, 4, 6)),
        (ISLANDS, (), 8, tuple(range(8))),
        (NODES, (), 2, (0, 1)),
        (NODES, (0,), 2, (2, 3)),
        (NODES, (0, 2), 2, (1, 3)),
        (PAIRS, (), 2, (0, 3)),
        (PAIRS, (3,), 2, (1, 2)),
        (PAIRS, (), 1, (4,)),
        (PAIRS, (4, 0), 1, (3,)),
    ],
)
def test_neighbours_are_chosen_and_left_together(gpus, taken, count, chosen):
    busy = [running(1, *taken)] if taken else []
    assert choose(by_topology(*busy, gpus=gpus), shape(count)) == chosen


def test_without_any_word_about_neighbours_the_lowest_are_taken():
    assert choose(by_topology(gpus=[card(i) for i in range(1024)]), shape(3)) == (0, 1, 2)


@given(st.integers(2, 6), st.integers(1, 4), st.data())
def test_order_is_complete_and_best_for_one_and_two(total, count, data):
    pairs = data.draw(st.sets(st.sampled_from(list(itertools.combinations(range(total), 2)))))
    links = {i: [b if a == i else a for a, b in pairs if i in (a, b)] for i in range(total)}
    gpus = {i: card(i, links[i], node=data.draw(st.integers(-1, 1))) for i in range(total)}
    found = list(range(total))
    ordered = nearest_first(gpus, found, count)
    assert sorted(ordered) == found
    if count == 2:
        best = max(nearness(gpus, a, [b]) for a, b in itertools.combinations(found, 2))
        assert nearness(gpus, ordered[0], [ordered[1]]) == best
