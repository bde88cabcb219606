"""The memory watchdog: how often it looks, and what it may cost."""

from __future__ import annotations

import os

import pytest

from gflow.targets.local.shim import memory_watch
from gflow.targets.local.shim.memory_watch import WATCHDOG_S, Memory
from gflow.targets.local.shim.process_tree import mapped_kib, resident_kib

LIMIT_KIB = 100 << 10


class Machine:
    """On which measuring costs CPU time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # In all, and with shared pages counted for each process.
        self.used_kib = self.mapped_kib = 0
        self.cost_s = self.spent_s = self.now = 0.0
        self.measured = 0
        monkeypatch.setattr(memory_watch, "descendants", lambda pid: iter([1, 2, 3]))
        monkeypatch.setattr(memory_watch, "mapped_kib", lambda pids: self.mapped_kib)
        monkeypatch.setattr(memory_watch, "resident_kib", self._measure)
        monkeypatch.setattr(memory_watch.time, "process_time", lambda: self.spent_s)
        monkeypatch.setattr(memory_watch.time, "monotonic", lambda: self.now)
        self.job = Memory(LIMIT_KIB >> 10, None)

    def _measure(self, pids: object) -> int:
        self.measured += 1
        self.spent_s += self.cost_s
        self.now += self.cost_s
        return self.used_kib

    def look(self) -> float:
        pause_s = self.job.look()
        self.now += pause_s
        return pause_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("mapped_kib", [0, LIMIT_KIB + 1], ids=["little", "much that is shared"])
@pytest.mark.parametrize("cost_s", [0.0001, 0.01, 0.5, 20.0])
def test_watchdog_takes_two_percent_of_the_time_at_most(
    machine: Machine, cost_s: float, mapped_kib: int
) -> None:
    machine.cost_s, machine.mapped_kib = cost_s, mapped_kib
    while machine.now < 400 * cost_s:
        machine.look()
    assert machine.spent_s <= 0.02 * machine.now
    assert not machine.job.is_exceeded


def test_watchdog_looks_often_again_when_looks_become_cheap(machine: Machine) -> None:
    machine.cost_s, machine.mapped_kib = 2.0, LIMIT_KIB + 1
    assert machine.look() > WATCHDOG_S
    machine.mapped_kib = 0
    assert machine.look() == WATCHDOG_S
    machine.used_kib = machine.mapped_kib = LIMIT_KIB + 1
    machine.look()
    assert machine.job.is_exceeded and machine.job.peak_kib() == LIMIT_KIB + 1


def test_large_job_below_limit_is_measured_rarely(machine: Machine) -> None:
    """So that it does not grow far beyond its limit before that is seen."""
    machine.cost_s, machine.used_kib, machine.mapped_kib = 0.5, LIMIT_KIB // 2, LIMIT_KIB // 2
    assert {machine.look() for _ in range(400)} == {WATCHDOG_S}
    assert machine.measured == 1
    assert machine.job.peak_kib() == LIMIT_KIB // 2


def test_size_with_shared_pages_is_upper_bound() -> None:
    pids = [os.getpid(), os.getpid()]
    assert mapped_kib(pids) * 1.02 >= resident_kib(pids) > 0
