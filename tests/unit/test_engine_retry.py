"""Retries: after which ends, and after how long a pause."""

import pytest

from gflow.core.model import JobState

from .builders import NOON
from .machine import Machine

OOM = "OutOfMemory: used 2 GiB of 1 GiB"


@pytest.mark.parametrize(
    ("on", "end", "again"),
    [
        ((), {"code": 1}, True),
        ((), {"code": None, "signal": 9}, True),
        ((), {"code": None, "problem": "Lost"}, True),
        (("failed",), {"code": 1}, True),
        (("any",), {"code": 1}, True),
        (("exit",), {"code": 1}, True),
        (("exit:1",), {"code": 1}, True),
        (("exit:2",), {"code": 1}, False),
        (("exit",), {"code": None, "signal": 9}, False),
        (("signal",), {"code": None, "signal": 9}, True),
        (("signal:9",), {"code": None, "signal": 9}, True),
        (("signal:15",), {"code": None, "signal": 9}, False),
        (("oom",), {"code": None, "signal": 9, "problem": OOM}, True),
        (("signal",), {"code": None, "signal": 9, "problem": OOM}, False),
        (("oom",), {"code": 1}, False),
        (("lost",), {"code": None, "problem": "Lost"}, True),
        (("lost",), {"code": None, "problem": "Reboot"}, True),
        (("lost",), {"code": None}, True),
        (("start",), {"code": None, "problem": "StartFailed: no such file"}, True),
        (("oom", "exit:75"), {"code": 75}, True),
        (("any",), {"code": 0}, False),
    ],
    ids=str,
)
def test_the_ends_that_count(on, end, again):
    machine = Machine()
    machine.submit(max_retries=1, retry_on=on)
    machine.ends(1, **end)
    assert (machine[1].attempt == 2) is again
    assert (machine[1].retries == 1) is again


@pytest.mark.parametrize(
    ("on", "again"), [((), False), (("timeout",), True), (("any",), True), (("oom",), False)]
)
def test_a_time_out_counts_only_if_named(on, again):
    machine = Machine()
    machine.submit(time_limit_s=60, max_retries=1, retry_on=on)
    machine.passes(60)
    machine.ends(1, None, signal=15)
    assert machine.stands(1) == ("Running" if again else "Timeout (TimeLimit)")


def test_cancelled_job_is_not_retried():
    machine = Machine()
    machine.submit(max_retries=5, retry_on=("any",), retry_delay_s=10)
    machine.cancel(1)
    machine.ends(1, None, signal=15)
    assert machine[1].state is JobState.CANCELLED


def test_the_pause_doubles_up_to_an_hour():
    machine = Machine()
    machine.submit(max_retries=12, retry_delay_s=10)
    pauses = []
    for _ in range(11):
        machine.ends(1, 1)
        assert machine.stands(1) == "Queued (RetryDelay)"
        pauses.append(machine[1].retry_at - machine.now.wall)
        machine.passes(pauses[-1] - 1)
        assert machine.running() == []
        machine.passes(1)
        assert machine.running() == ["1"]
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]


def test_retry_delay_above_an_hour_is_kept():
    machine = Machine()
    machine.submit(max_retries=2, retry_delay_s=7200)
    for _ in range(2):
        machine.ends(1, 1)
        assert machine[1].retry_at == machine.now.wall + 7200
        machine.passes(7200)


def test_a_pause_holds_no_resources_and_lets_others_pass():
    machine = Machine(cpus=1)
    machine.submit(max_retries=1, retry_delay_s=10)
    machine.submit()
    machine.ends(1, 1)
    assert machine.running() == ["2"]


def test_a_begin_time_in_the_future_outlasts_the_pause():
    machine = Machine()
    machine.submit(max_retries=1, retry_delay_s=10)
    machine.ends(1, 1)
    machine.update(1, begin_at=NOON + 500)
    assert machine.stands(1) == "Queued (BeginTime)"
    machine.passes(100)
    assert machine.running() == []
    machine.passes(400)
    assert machine.running() == ["1"]


@pytest.mark.parametrize("how", ["release", "update"])
def test_release_or_update_ends_the_retry_delay(how):
    machine = Machine()
    machine.submit(max_retries=1, retry_delay_s=1000)
    machine.ends(1, 1)
    if how == "release":
        machine.release(1, begin_at=machine.now.wall)
    else:
        machine.update(1, begin_at=0.0)
    assert machine.running() == ["1"]


def test_a_hold_during_the_pause_does_not_shorten_it():
    machine = Machine()
    machine.submit(max_retries=1, retry_delay_s=100)
    machine.ends(1, 1)
    machine.hold(1)
    machine.passes(10)
    machine.release(1)
    assert machine.stands(1) == "Queued (RetryDelay)"


def test_tasks_pause_each_for_itself():
    machine = Machine()
    machine.submit(array="0-1", max_retries=1, retry_delay_s=30)
    machine.ends("1_0", 1)
    assert machine.running() == ["1_1"]
    machine.passes(30)
    assert machine.running() == ["1_0", "1_1"]
