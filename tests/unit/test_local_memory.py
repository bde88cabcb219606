"""The memory watchdog: how often it looks, and what it may cost."""

from __future__ import annotations

import pytest

from gflow.targets.local import memory
from gflow.targets.local.memory import WATCHDOG_S, Memory


class Costly:
    """A machine on which measuring costs this much CPU time, and this much memory is used."""

    def __init__(self, cost_s: float, used_kib: int = 0) -> None:
        self.cost_s, self.used_kib, self.spent_s = cost_s, used_kib, 0.0

    def resident_kib(self, pids: object) -> int:
        self.spent_s += self.cost_s
        return self.used_kib

    def process_time(self) -> float:
        return self.spent_s


def watched(monkeypatch: pytest.MonkeyPatch, machine: Costly) -> Memory:
    monkeypatch.setattr(memory, "descendants", lambda pid: iter([1, 2, 3]))
    monkeypatch.setattr(memory, "resident_kib", machine.resident_kib)
    monkeypatch.setattr(memory.time, "process_time", machine.process_time)
    monkeypatch.setattr(memory.time, "monotonic", machine.process_time)
    return Memory(100, None)


@pytest.mark.parametrize("cost_s", [0.0001, 0.01, 0.5, 20.0])
def test_watchdog_takes_two_percent_of_the_time_at_most(
    monkeypatch: pytest.MonkeyPatch, cost_s: float
) -> None:
    machine = Costly(cost_s)
    job = watched(monkeypatch, machine)
    paused_s = sum(job.look() for _ in range(100))
    assert machine.spent_s <= 0.02 * (machine.spent_s + paused_s)


def test_watchdog_looks_often_again_when_looks_become_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Costly(2.0)
    job = watched(monkeypatch, machine)
    assert job.look() > WATCHDOG_S
    machine.cost_s = 0.0
    assert job.look() == WATCHDOG_S
    machine.used_kib = (100 << 10) + 1
    job.look()
    assert job.is_exceeded
