"""Every sample is used once and counts as much as any other, on any rank."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.ml.train.data.data_sharding import Share, shares

sizes = st.integers(1, 9)


@given(
    samples=st.integers(0, 200),
    batch=sizes,
    effective=st.integers(1, 60),
    world=sizes,
    start=st.integers(0, 50),
)
def test_every_sample_once_and_of_equal_weight(samples, batch, effective, world, start):
    per_rank = [list(shares(samples, batch, effective, world, rank, start)) for rank in range(world)]
    assert len({len(own) for own in per_rank}) == 1, "all ranks take part in every round"
    used: list[int] = []
    for round_ in zip(*per_rank, strict=True):
        assert len({(share.done, share.ends_step) for share in round_}) == 1
        assert all(1 <= share.last - share.first <= batch for share in round_)
        used += [at for share in round_ if share.weight for at in range(share.first, share.last)]
    assert used == list(range(start, samples))
    for step in steps_of(per_rank):
        counted = sum(Fraction(share.weight).limit_denominator(10**6) for share in step)
        assert counted == world, "gradients are the mean over the step's samples"
        each = {
            Fraction(share.weight).limit_denominator(10**6) / (share.last - share.first)
            for share in step
            if share.weight
        }
        assert len(each) == 1


def steps_of(per_rank: list[list[Share]]) -> list[list[Share]]:
    steps: list[list[Share]] = [[]]
    for round_ in zip(*per_rank, strict=True):
        steps[-1] += round_
        if round_[0].ends_step:
            steps.append([])
    assert not steps[-1], "an epoch ends with a step"
    return steps[:-1]


@given(samples=st.integers(0, 100), effective=st.integers(1, 30), world=sizes)
def test_steps_have_the_same_samples_on_any_number_of_ranks(samples, effective, world):
    def ends(world: int) -> list[int]:
        return [share.done for share in shares(samples, 3, effective, world) if share.ends_step]

    assert ends(world) == ends(1)


def test_a_remainder_can_be_dropped():
    assert [share.done for share in shares(10, 2, 4, drop=True) if share.ends_step] == [4, 8]
    assert [share.done for share in shares(10, 2, 4) if share.ends_step] == [4, 8, 10]


@pytest.mark.parametrize(("rank", "share"), [(0, Share(8, 9, 0.0, 9, True)), (1, Share(8, 9, 2.0, 9, True))])
def test_rank_without_samples_takes_part(rank, share):
    assert list(shares(9, 2, 4, 2, rank))[-1] == share
