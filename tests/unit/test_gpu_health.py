"""When a GPU is drained because of a fault, and when it is resumed."""

from __future__ import annotations

import pytest

from gflow.gpu.health import HEAT, Health
from gflow.gpu.port import Card, Sample, Vitals
from gflow.gpu.settings import GpuSettings

FINE = Card(uuid="GPU-1", number=0, model="A100", memory_mib=80000, vitals=Vitals(0, False, 16, 16, 89))


def card(**changes):
    vitals = {name: changes.pop(name) for name in Vitals._fields if name in changes}
    return FINE._replace(sample=Sample(**changes), vitals=FINE.vitals._replace(**vitals))


def judged(*cards, every_s=10.0, **rules):
    health = Health(GpuSettings(**rules))
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
def test_card_errors_differ_from_program_errors(number, bad):
    health = Health(GpuSettings())
    health.xid(number)
    assert (f"Xid {number}" in health.judge(FINE, 0)) == bad


def test_heat_passes_with_some_distance():
    heats = [88, 89, 86, 83, 88]
    assert [bool(why) for why in judged(*(card(temperature=heat) for heat in heats))] == [
        False, True, True, False, False,
    ]  # fmt: skip


def test_slowed_for_a_minute():
    slow, quick = card(slowed=HEAT), card(slowed=1)
    assert [bool(why) for why in judged(slow, slow, quick, slow, slow, slow, quick, every_s=30)] == [
        False, False, False, False, False, True, False,
    ]  # fmt: skip


def test_lanes_lost_for_a_while():
    narrow, half = card(width=4), card(width=8)
    assert judged(half, half, half, half, every_s=60) == [""] * 4
    assert judged(narrow, narrow, every_s=60)[1] == "PCIe has only 4 of 16 lanes"
    assert judged(narrow, FINE, narrow, every_s=60)[2] == ""


def test_memory_errors_after_driver_reload_count():
    assert judged(card(ecc_errors=5), card(ecc_errors=1))[1] == "1 uncorrectable memory errors (ECC)"
    assert judged(card(ecc_errors=5), card(ecc_errors=0)) == ["", ""]


@pytest.mark.parametrize(
    ("rules", "cards", "drained"),
    [
        ({"drain_ecc_errors": 3}, [card(ecc_errors=1), card(ecc_errors=3), card(ecc_errors=4)], [0, 0, 1]),
        ({"drain_ecc_errors": 0}, [card(ecc_errors=1), card(ecc_errors=900)], [0, 0]),
        ({"drain_temperature": 70}, [card(temperature=69), card(temperature=70), card(temperature=65)],
         [0, 1, 1]),
        ({"drain_temperature": 200}, [card(temperature=95)], [0]),
        ({"drain_slowed": False}, [card(slowed=HEAT)] * 9, [0] * 9),
        ({"drain_after_secs": 15}, [card(slowed=0x80)] * 3, [0, 0, 1]),
        ({"drain_pcie_percent": 0}, [card(width=1)] * 9, [0] * 9),
        ({"drain_pcie_percent": 50, "drain_after_secs": 10}, [card(width=8)] * 2, [0, 1]),
    ],
    ids=str,
)  # fmt: skip
def test_health_thresholds_are_settings(rules, cards, drained):
    assert [int(bool(why)) for why in judged(*cards, **rules)] == drained


def test_counted_xids_are_settings():
    health = Health(GpuSettings(drain_xids=(13,), ignore_xids=(79,)))
    health.xid(79)
    assert health.judge(FINE, 0) == ""
    health.xid(13)
    assert health.judge(FINE, 1) == "Xid 13"


def test_clear_fault_forgives_only_known_faults():
    health = Health(GpuSettings(drain_after_secs=0))
    limping = card(width=4, remapping_failed=True, ecc_errors=1)
    assert health.judge(limping, 0) == "its memory has more bad rows than it can replace"
    health.clear_fault()
    assert [health.judge(limping, at) for at in (1, 2, 3)] == ["", "", ""]
    assert (
        health.judge(card(width=2, remapping_failed=True, ecc_errors=1), 4) == "PCIe has only 2 of 16 lanes"
    )
    assert health.judge(card(ecc_errors=2), 5) == "1 uncorrectable memory errors (ECC)"
    health.clear_fault()
    assert health.judge(card(ecc_errors=2), 6) == ""
    health.xid(79)
    assert health.judge(FINE, 7) == "Xid 79: fell off the bus"


def test_lanes_that_came_back_and_go_again_count_again():
    health = Health(GpuSettings(drain_after_secs=0))
    health.judge(card(width=4), 0)
    health.clear_fault()
    assert [bool(health.judge(each, at)) for at, each in enumerate([card(width=4), FINE, card(width=4)])] == [
        False, False, True,
    ]  # fmt: skip


def test_fault_found_by_an_earlier_daemon_holds():
    health = Health(GpuSettings(), "Xid 79: fell off the bus")
    assert health.judge(FINE, 0) == "Xid 79: fell off the bus"
    health.clear_fault()
    assert health.judge(FINE, 1) == ""
