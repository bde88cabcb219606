"""Jobs that have GPUs and do not use them."""

from __future__ import annotations

import pytest

from gflow.core.events import Idled, IdleSeen
from gflow.core.ids import JobKey
from gflow.core.model import Moment
from gflow.daemon.monitors import idle_gpus
from gflow.daemon.monitors.gpu_monitor import HeldRun, WatchedRuns
from gflow.daemon.monitors.idle_gpus import IdleGpuMonitor
from gflow.gpu.census import Report, UnmanagedProcess
from gflow.gpu.idle import SILENCE_S, IdleTracker
from gflow.gpu.port import Card, Sample

HERE = {"3.1": {0: 500}}


def report(busy=0, used=None, *, index=0, **more):
    card = Card(uuid="A", number=0, model="A100", memory_mib=80000, sample=Sample(utilisation=busy))
    return Report(cards={index: card}, used=used or {}, **more)


def idle_after(*reports, holders=None, every_s=1.0):
    """For how long run 3.1 has not used GPU 0 after each of these looks."""
    tracker = IdleTracker()
    found = []
    for at, each in enumerate(reports):
        tracker.see(each, holders or {0: ("3.1",)}, 100 + at * every_s)
        found.append(tracker.idle_times(100 + at * every_s)["3.1"][0])
    return found


@pytest.mark.parametrize(
    ("look", "seconds", "is_bare"),
    [
        (report(0), 2, True),
        (report(0, HERE), 2, False),
        (report(40, HERE), 0, False),
        (report(40, {"3.1": {0: 0}}), 0, False),
        (report(40), 0, True),
        (report(40, unmanaged={0: (UnmanagedProcess(1, "eve", "x", 1),)}), 2, True),
        (report(0, unclear=frozenset({0})), 2, False),
        (report(None, HERE), 0, False),
        (report(None), 2, True),
        (report(None, unclear=frozenset({0})), 0, False),
        (Report(), 0, True),
    ],
)
def test_gpu_use_and_idle_time(look, seconds, is_bare):
    assert idle_after(look, look, look)[-1] == (seconds, is_bare)


def test_a_neighbours_work_is_none_of_its_own():
    holders = {0: ("3.1", "4.1")}
    assert idle_after(*[report(90, {"4.1": {0: 5}})] * 3, holders=holders)[-1] == (2, True)
    assert idle_after(*[report(90, HERE)] * 3, holders=holders)[-1] == (0, False), "the owner is unknown"


def test_use_resets_the_idle_time_and_missing_reports_stop_it():
    quiet, busy = report(0, HERE), report(50, HERE)
    assert [one.seconds for one in idle_after(quiet, quiet, busy, quiet, quiet)] == [0, 1, 0, 1, 2]
    assert idle_after(quiet, quiet, every_s=SILENCE_S + 1)[-1].seconds == 0
    assert [one.seconds for one in idle_after(quiet, quiet, Report(), quiet)] == [0, 1, 0, 1]


def test_a_run_that_is_over_is_forgotten():
    tracker = IdleTracker()
    tracker.see(report(), {0: ("3.1",)}, 0)
    tracker.see(report(), {0: ("3.2",)}, 1)
    assert tracker.idle_times(1).keys() == {"3.2"}


class TestIdleGpuMonitor:
    @pytest.fixture
    def told(self):
        return []

    @pytest.fixture
    def look(self, monkeypatch, told):
        now = [1000.0]
        monkeypatch.setattr(idle_gpus.time, "monotonic", lambda: now[0])
        watching = IdleGpuMonitor(10, lambda make: told.append(make(Moment(0, 0))))

        def look(seconds, each, limit=0):
            now[0] += seconds
            watching.looked(
                each, WatchedRuns({0: ("3.1",)}, (), {"3.1": HeldRun(JobKey(3), 1, "kind", limit)})
            )

        return look

    def test_news_come_at_first_when_it_doubles_and_when_it_is_over(self, look, told):
        for _ in range(45):
            look(1, report())
        look(1, report(50, HERE))
        look(1, report(0, HERE))
        texts = [[idle.text for idle in event.idle.values()] for event in told]
        expected = [[f"no process on GPU 0 for {seconds} s"] for seconds in (10, 20, 40)]
        assert texts == [*expected, []]
        assert all(isinstance(event, IdleSeen) for event in told)

    def test_idle_limit_is_reported_once(self, look, told):
        for _ in range(9):
            look(1, report(), limit=5)
        (event,) = told
        assert isinstance(event, Idled) and (event.key, event.attempt) == (3, 1)
        assert event.idle.unused_s == 5
