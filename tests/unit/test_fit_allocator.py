"""The model of PyTorch's caching allocator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.ml.fit.cuda.allocator import MIB, Allocator, OutOfMemory, segment_size


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # A remainder that is too small for a request stays with the block.
        (11 * MIB + 512, 12 * MIB, 12 * MIB),
        (33 * MIB, 34 * MIB, 34 * MIB),
    ],
)
def test_allocation_of_one_request(asked, allocated, reserved):
    card = Allocator()
    card.allocate(asked)
    assert (card.allocated, card.reserved) == (allocated, reserved)


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    card = Allocator()
    small, large = card.allocate(20 * MIB), card.allocate(40 * MIB)
    card.free(large)
    card.free(small)
    assert card.allocate(18 * MIB).address == small.address
    assert card.reserved == 60 * MIB


def test_small_requests_share_a_segment_of_small_pool():
    card = Allocator()
    card.free(card.allocate(12 * MIB))
    for _ in range(4096):
        card.allocate(512)
    assert card.reserved == 12 * MIB + 2 * MIB


def test_free_neighbours_become_one_block():
    card = Allocator()
    blocks = [card.allocate(5 * MIB) for _ in range(4)]
    assert card.reserved == 20 * MIB
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        card.free(block)
    card.allocate(20 * MIB)
    assert card.reserved == 20 * MIB


def test_under_a_cap_free_segments_go_back_first():
    card = Allocator(cap=64 * MIB)
    card.free(card.allocate(40 * MIB))
    card.allocate(50 * MIB)
    assert (card.reserved, card.retries) == (50 * MIB, 1)


def test_a_segment_in_use_does_not_go_back():
    card = Allocator(cap=64 * MIB)
    half = card.allocate(20 * MIB)
    rest = card.allocate(20 * MIB)
    card.free(half)
    with pytest.raises(OutOfMemory):
        card.allocate(50 * MIB)
    card.free(rest)
    card.allocate(50 * MIB)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 64 * MIB)), max_size=60))
def test_allocator_loses_no_memory(moves):
    card, live = Allocator(), []
    for is_free, size in moves:
        if is_free and live:
            card.free(live.pop(size % len(live)))
        else:
            live.append(card.allocate(size))
        assert card.allocated == sum(block.size for block in live) <= card.reserved
        assert len({block.address for block in live}) == len(live)
    for block in live:
        card.free(block)
    assert card.allocated == 0
    free = [entry[2] for pool in card._free for entry in pool]
    assert sum(block.size for block in free) == card.reserved
    assert all(block.before is None and block.after is None for block in free)


@given(st.integers(1, 1 << 34))
def test_a_segment_holds_its_block(size):
    size = -(-size // 512) * 512
    assert segment_size(size) >= size
    assert segment_size(size) - size < 20 * MIB
