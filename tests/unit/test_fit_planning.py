"""Plans, from a model whose memory is a straight line."""

from __future__ import annotations

import pytest

from gflow.errors import Refused
from gflow.fit.answer import KINDS, Estimate
from gflow.fit.catalogue import Gpu, named
from gflow.fit.planning import plan
from gflow.fit.verdict import largest_batch

GIB = 1 << 30


def measured(states, example, recomputed, confidence="high"):
    """Weights, gradients and optimizer of `states` GiB; so many GiB per example, recomputed or not."""

    def measure(checkpointing, batch):
        each = recomputed if checkpointing else example
        size = int((states + batch * each) * GIB)
        parts = dict.fromkeys(KINDS, 0) | {
            "parameters": int(states / 4 * GIB),
            "gradients": int(states / 4 * GIB),
            "optimizer": int(states / 2 * GIB),
        }
        return Estimate(
            peak_allocated_bytes=size, peak_reserved_bytes=size, process_bytes=size, confidence=confidence,
            doubts=[], breakdown=parts, peak_phase="backward", peak_step=2, largest=[], total_params=100,
            trainable_params=100,
        )  # fmt: skip

    return measure


def test_what_fits_easily_is_left_alone():
    way = plan(measured(4, 0.1, 0.05), named("H200"), 1, 32, 2048, "bf16").chosen
    assert (way.micro_batch, way.accumulate) == (32, 1)
    assert not (way.checkpointing or way.eight_bit or way.offload)


def test_the_effective_batch_is_kept():
    for gpus in (1, 2, 3, 8):
        found = plan(measured(4, 1, 0.2), named("A100-40GB"), gpus, 48, 512, "bf16")
        for way in (found.chosen, *found.alternatives):
            assert way.micro_batch * way.accumulate * way.gpus == 48


def test_nothing_in_the_plan_is_larger_than_the_card():
    found = plan(measured(60, 2, 0.5), named("A100-80GB"), 4, 64, 2048, "bf16")
    assert all(way.share <= 0.95 for way in (found.chosen, *found.alternatives))
    assert found.chosen.relative_speed == 1
    assert all(way.relative_speed <= 1 for way in found.alternatives)


def test_states_too_large_for_one_card_are_sharded():
    found = plan(measured(120, 0.5, 0.2), named("H100-80GB"), 8, 64, 2048, "bf16")
    assert found.chosen.sharding in ("zero1", "zero2", "fsdp")
    assert found.chosen.gpus == 8


def test_what_cannot_fit_is_refused_with_the_least_it_takes():
    with pytest.raises(Refused, match="GiB on each at least"):
        plan(measured(500, 0.5, 0.2), named("T4"), 1, 8, 512, "fp32")


def test_rules_on_top_lower_confidence():
    assert plan(measured(4, 0.1, 0.05), named("H200"), 1, 8, 2048, "bf16").confidence == "high"
    assert plan(measured(4, 0.1, 0.05), named("H200"), 2, 8, 2048, "bf16").confidence == "medium"
    assert plan(measured(4, 0.1, 0.05, "rough"), named("H200"), 2, 8, 2048, "bf16").confidence == "rough"


@pytest.mark.parametrize("bend", [0, 7, 90, -60])
@pytest.mark.parametrize("true", [0, 1, 2, 7, 100, 1000])
def test_the_largest_batch_is_found_in_few_runs(true, bend, monkeypatch):
    runs = []

    class Line:
        def __init__(self, batch):
            runs.append(batch)
            self.size = 1000 + batch * 10 + bend * batch // 100

    monkeypatch.setattr("gflow.fit.verdict.fits", lambda tape, room: tape.size <= room)
    monkeypatch.setattr(
        "gflow.fit.verdict.answer", lambda tape: type("Found", (), {"peak_allocated_bytes": tape.size})
    )
    room = 1000 + 10 * true + 5
    true = next(batch for batch in range(2000, -1, -1) if Line(batch).size <= room or not batch)
    runs.clear()
    assert largest_batch(Line, room) == true
    assert len(runs) <= 14
    if not bend:
        assert len(runs) <= 5


def test_a_card_of_ones_own():
    gpu = Gpu(name="x", architecture="hopper", memory_gib=8, bandwidth=0, bf16=0, fp32=0)
    assert plan(measured(2, 0.1, 0.05), gpu, 1, 8, 512, "bf16").chosen.bytes < 8 * GIB
