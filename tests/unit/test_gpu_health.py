"""When a GPU gets no more jobs because it is sick, and when it gets some again."""

from __future__ import annotations

import pytest

from gflow.gpu.health import HEAT, Health
from gflow.gpu.port import Card, Sample, Vitals

FINE = Card(uuid="GPU-1", number=0, model="A100", memory_mib=80000, vitals=Vitals(0, False, 16, 16, 89))


def card(**changes):
    vitals = {name: changes.pop(name) for name in Vitals._fields if name in changes}
    return FINE._replace(sample=Sample(**changes), vitals=FINE.vitals._replace(**vitals))


def judged(*cards, every_s=10.0):
    health = Health()
    return [health.judge(each, every_s * at) for at, each in enumerate(cards)]


def test_a_healthy_card_is_fine():
    assert judged(FINE, card(temperature=60, utilisation=100)) == ["", ""]


def test_new_memory_errors_stay_a_reason_and_old_ones_are_none():
    assert judged(card(ecc_errors=3), card(ecc_errors=3)) == ["", ""]
    assert judged(card(ecc_errors=0), card(ecc_errors=2), card(ecc_errors=0)) == [
        "",
        "2 uncorrectable memory errors (ECC)",
        "2 uncorrectable memory errors (ECC)",
    ]


def test_a_card_without_ecc_is_fine():
    assert judged(card(ecc_errors=None), card(ecc_errors=None)) == ["", ""]


@pytest.mark.parametrize(("number", "bad"), [(79, True), (48, True), (95, True), (13, False), (31, False)])
def test_errors_of_the_card_and_of_the_program_are_told_apart(number, bad):
    health = Health()
    health.xid(number)
    assert (f"Xid {number}" in health.judge(FINE, 0)) == bad


def test_heat_passes_with_some_distance():
    heats = [88, 89, 86, 83, 88]
    assert [bool(why) for why in judged(*(card(temperature=heat) for heat in heats))] == [
        False, True, True, False, False,
    ]  # fmt: skip


def test_slowed_for_a_minute():
    slow, quick = card(slowed=HEAT), card(slowed=1)
    assert [bool(why) for why in judged(slow, slow, quick, slow, slow, slow, every_s=30)] == [
        False, False, False, False, False, True,
    ]  # fmt: skip


def test_lanes_lost_for_a_while():
    narrow, half = card(width=4), card(width=8)
    assert judged(half, half, half, half, every_s=60) == [""] * 4
    assert judged(narrow, narrow, every_s=60)[1] == "PCIe has only 4 of 16 lanes"
    assert judged(narrow, FINE, narrow, every_s=60)[2] == ""
