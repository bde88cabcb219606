"""Jobs that do not use their GPUs: shown, and stopped if they may not."""

from __future__ import annotations

import pytest

from gflow.core.events import Idled, IdleSeen
from gflow.core.lifecycle.limits import idle_of, spell_duration
from gflow.core.model import JobState
from gflow.core.policy import Policy
from gflow.daemon.loop.stored_state import reload
from gflow.testing import MemoryStore

from .machine import Machine, gpu, key_of


def machine_with(**asked):
    machine = Machine(gpu(0), gpu(1))
    machine.submit(gpus=1, **asked)
    return machine


def seen(machine, *jobs, attempt=1):
    idle = {key_of(job): idle_of(attempt, (0,), 1800, is_bare=True) for job in jobs}
    return machine.hears(IdleSeen, idle=idle)


def idled(machine, seconds, attempt=1, job=1):
    idle = idle_of(attempt, (0,), seconds, is_bare=False)
    return machine.hears(Idled, key=key_of(job), attempt=attempt, idle=idle)


def test_idle_reason_is_shown_while_idle():
    machine = machine_with()
    seen(machine, 1)
    assert machine.stands(1) == "Running (IdleGPU: no process on GPU 0 for 30 min)"
    seen(machine)
    assert machine.stands(1) == "Running"


def test_idle_report_of_other_attempt_or_waiting_job_is_ignored():
    machine = machine_with()
    machine.submit(gpus=2)
    seen(machine, 1, attempt=2)
    seen(machine, 2)
    assert (machine.stands(1), machine.state.running.unused) == ("Running", {})
    seen(machine, 1)
    machine.ends(1)
    assert machine.state.running.unused == {}


@pytest.mark.parametrize(
    ("asked", "policy", "seconds", "is_stopped"),
    [
        (0, 0, 99999, False),
        (600, 0, 599, False),
        (600, 0, 600, True),
        (0, 600, 600, True),
        (900, 600, 700, True),
        (600, 900, 700, True),
        (600, 900, 500, False),
    ],
)
def test_idle_job_is_stopped_after_the_shorter_limit(asked, policy, seconds, is_stopped):
    machine = machine_with(stop_if_idle_s=asked, max_retries=3, requeue=True)
    machine.state.policy = Policy(stop_idle_s=policy)
    idled(machine, seconds)
    assert ("stop 1 #1" in machine.did) == is_stopped
    assert (machine[1].stopping is JobState.CANCELLED) == is_stopped
    if is_stopped:
        machine.ends(1, code=None, signal=15)
        assert machine.stands(1) == f"Cancelled (IdleGPU: GPU 0 not used for {spell_duration(seconds)})"


def test_idle_report_of_stopping_job_is_ignored():
    machine = machine_with(stop_if_idle_s=10)
    idled(machine, 99, attempt=2)
    assert machine[1].stopping is None
    machine.cancel(1)
    idled(machine, 99)
    machine.ends(1, code=None, signal=15)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"
    idled(machine, 99)


def test_idle_durations_are_spelled():
    assert [spell_duration(s) for s in (5, 119.4, 120, 7199, 7200, 90000)] == [
        "5 s", "119 s", "2 min", "119 min", "2 h", "25 h",
    ]  # fmt: skip


def test_rebuilt_state_knows_idle_jobs():
    machine = machine_with()
    seen(machine, 1)
    assert reload(machine.state, machine.store).running.unused == machine.state.running.unused != {}
    assert reload(machine.state, MemoryStore()).running.unused == {}, (
        "not of jobs that the disk does not have"
    )
