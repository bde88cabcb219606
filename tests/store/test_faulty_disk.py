"""A fault at every single operation on the disk: old or new state, never neither, never both."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from tests.store.disk import FAULTS, Disk, judge, operations, order, spread

# `make test` takes as many operations as this per fault; `make test-slow` takes all of them.
SAMPLE = 31


def total(disk: Disk) -> int:
    """How many operations there are in a life without a fault. They must all have been seen."""
    life = disk.live({"mode": "none", "at": 0})
    found = operations(life)
    assert found["database", "write"] > 50, f"checkpoints are not seen: {found}"
    assert found["log", "write"] > 200, f"commits are not seen: {found}"
    assert found["log", "sync"] >= 17 and found["database", "sync"] >= 5, f"syncs are not seen: {found}"
    assert found["folder", "sync"] >= 1, f"the folder is not synced: {found}"
    return sum(found.values())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_operation(disk: Disk, expected: list[str], fault: str) -> None:
    orders = [order(fault, at) for at in spread(total(disk), SAMPLE)]
    verdicts = disk.live_all(orders, partial(judge, expected=expected))
    print(fault, dict(verdicts))
    assert verdicts.total() >= SAMPLE - 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_operation(disk: Disk, expected: list[str], fault: str) -> None:
    orders = [order(fault, at) for at in range(1, total(disk) + 2)]
    verdicts = disk.live_all(orders, partial(judge, expected=expected))
    print(fault, len(orders), "operations:", dict(verdicts))


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_the_judge_catches_a_store_that_does_not_sync(
    disk: Disk, expected: list[str], synchronous: str
) -> None:
    """A test of the test: without the sync, a power cut must show it."""
    orders = [order("cut", at) | {"synchronous": synchronous} for at in spread(total(disk) - 40, 20)]
    with pytest.raises(AssertionError, match=r"were acknowledged|damaged|mixture"):
        disk.live_all(orders, partial(judge, expected=expected))


def test_power_cuts_really_lose_what_was_not_synced(disk: Disk) -> None:
    """A test of the library: the kinds of power cut leave different files behind, none what was written."""
    count = total(disk)
    left: dict[str, list[bytes]] = {}
    for fault in ("torn", "cut", "some", "sectors"):
        for at in spread(count, 12):
            life = disk.live(order(fault, at))
            files = sorted(path for path in life.folder.glob("gflow.db*") if not path.name.endswith("-shm"))
            left.setdefault(fault, []).append(b"".join(path.read_bytes() for path in files))
    for one, other in itertools.combinations(left, 2):
        differ = sum(a != b for a, b in zip(left[one], left[other], strict=True))
        assert differ >= 6, f"{one} and {other} leave the same in {12 - differ} cases of 12"
