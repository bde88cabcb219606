"""How long a shim may run with real-time priority."""

from __future__ import annotations

import os
import signal

import pytest

from gflow.targets.local.shim import realtime
from gflow.targets.local.shim.realtime import EPISODE_S, POLICY, Realtime


class Kernel:
    """Policies, a clock and a timer that rings when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: int = os.SCHED_OTHER) -> None:
        self.policy, self.now, self.timer_s = policy, 1000.0, 0.0
        self.ring = lambda *_: None
        monkeypatch.setattr(realtime.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(realtime.os, "sched_getscheduler", lambda pid: self.policy)
        monkeypatch.setattr(realtime.os, "sched_setscheduler", self._set)
        monkeypatch.setattr(realtime.signal, "signal", lambda number, act: setattr(self, "ring", act))
        monkeypatch.setattr(realtime.signal, "setitimer", lambda which, s: setattr(self, "timer_s", s))

    def _set(self, pid: int, policy: int, param: object) -> None:
        self.policy = policy

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if 0 < self.timer_s <= seconds:
            self.ring(signal.SIGALRM, None)


@pytest.mark.parametrize("policy", [os.SCHED_OTHER, POLICY], ids=["own", "of a plain shim"])
def test_episode_ends_by_itself_and_the_next_one_begins_as_much_later(
    monkeypatch: pytest.MonkeyPatch, policy: int
) -> None:
    kernel = Kernel(monkeypatch, policy)
    ours = Realtime()
    assert ours.begin() and kernel.policy == POLICY
    kernel.wait(EPISODE_S)
    assert kernel.policy == os.SCHED_OTHER
    kernel.wait(EPISODE_S * 0.9)
    assert not ours.begin() and kernel.policy == os.SCHED_OTHER
    kernel.wait(EPISODE_S * 0.2)
    assert ours.begin() and kernel.policy == POLICY


def test_policy_is_given_back_before_the_episode_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    ours = Realtime()
    assert ours.begin()
    ours.end()
    assert kernel.policy == os.SCHED_OTHER and kernel.timer_s == 0


def test_ordinary_user_stays_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(realtime.os, "sched_setscheduler", refuse)
    assert not Realtime().begin() and kernel.policy == os.SCHED_OTHER
