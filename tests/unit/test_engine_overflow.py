"""Jobs that go to another target if they do not start here soon enough: one of the two runs them."""

from __future__ import annotations

import pytest

from gflow.core.forecast.wait_report import wait_report
from gflow.core.model import DEFAULT_SPEC, JobState
from gflow.core.reasons import WITHDRAWN
from gflow.errors import UsageError
from gflow.options.rules import check_rules

from .builders import spec
from .machine import Machine, gpu

SOON = {"overflow": "slurm", "overflow_after_s": 100, "gpus": 1}


def busy(limit_s: int = 0) -> Machine:
    """One GPU, and a job that has it for so long; 0: unknown."""
    machine = Machine(gpu(0))
    machine.submit(gpus=1, time_limit_s=limit_s)
    return machine


def test_job_that_fits_starts_locally():
    machine = Machine(gpu(0))
    machine.submit(**SOON)
    assert (machine[1].target, machine[1].state) == ("local", JobState.RUNNING)


def test_job_expected_too_late_is_handed_over_at_once():
    machine = busy(limit_s=3600)
    machine.submit(**SOON)
    assert machine.did[-4:] == [
        "note 2 overflows: to slurm: its start here is expected in 3600 s",
        "save 2 Queued",
        "note 2 handed over: attempt 1 to slurm",
        "start 2 #1",
    ]
    machine.ends(1)
    assert machine[2].target == "slurm" and machine[2].state is JobState.QUEUED, "it is not here any more"


def test_impossible_local_job_is_handed_over_at_once():
    machine = Machine(gpu(0))
    machine.submit(**SOON | {"gpus": 8})
    assert machine[1].target == "slurm"
    assert any("out of sight" in line for line in machine.did)


def test_job_expected_in_time_waits_and_starts_locally():
    machine = busy(limit_s=60)
    machine.submit(**SOON)
    assert machine[2].target == "local"
    assert wait_report(machine.state, machine[2], machine.now).overflows_at == machine.now.wall + 100
    machine.passes(50)
    machine.ends(1)
    assert (machine[2].target, machine[2].state) == ("local", JobState.RUNNING)
    machine.passes(60)
    assert machine[2].attempt == 1, "its time to overflow is over"


def test_overflow_fires_at_deadline_when_eta_was_wrong():
    machine = busy(limit_s=60)
    machine.submit(gpus=1, time_limit_s=30)
    machine.submit(**SOON)
    assert machine[3].target == "local"
    assert machine.state.deadlines.next_overflow() == machine.now.boot + 100
    machine.passes(99)  # the first is being stopped, and does not end
    assert machine[3].target == "local"
    machine.passes(1)
    assert machine[3].target == "slurm"
    assert "note 3 overflows: to slurm: it has not started here within 100 s" in machine.did


def test_overflow_after_zero_hands_over_at_once():
    machine = busy(limit_s=1)
    machine.submit(**SOON | {"overflow_after_s": 0})
    assert machine[2].target == "slurm"


def test_a_drained_machine_sends_nothing_away():
    machine = busy()
    machine.drain()
    machine.submit(**SOON)
    machine.passes(200)
    assert machine[2].target == "local"
    machine.drain(on=False)
    assert machine[2].target == "slurm"


def test_job_of_a_full_group_is_not_handed_over():
    machine = Machine(gpu(0), gpu(1))
    machine.submit_specs(*[SOON | {"max_concurrent": 1, "group": 1}] * 2)
    machine.passes(200)
    assert machine[2].target == "local"
    machine.ends(1)
    assert machine[2].state is JobState.RUNNING


def test_a_job_that_was_taken_back_gets_its_chance_here_again():
    machine = busy()
    machine.submit(**SOON)
    assert machine[2].target == "slurm"
    machine.hold(2)
    machine.ends(2, None, problem=WITHDRAWN)
    assert (machine[2].target, machine[2].state) == ("local", JobState.HOLD)
    machine.ends(1)
    machine.release(2)
    assert (machine[2].target, machine[2].state, machine[2].attempt) == ("local", JobState.RUNNING, 2)


def test_a_retry_begins_here_again():
    machine = busy()
    machine.submit(**SOON, max_retries=1, retry_delay_s=0)
    machine.ends(1)
    machine.ends(2, 1)
    assert (machine[2].target, machine[2].state, machine[2].attempt) == ("local", JobState.RUNNING, 2)


def test_handed_over_job_lets_others_start():
    """A wide job that goes elsewhere lets those behind it start."""
    machine = Machine(gpu(0), gpu(1))
    machine.submit(gpus=1, time_limit_s=10)
    machine.submit(**SOON | {"gpus": 2, "overflow_after_s": 50})
    assert machine[2].target == "local"
    machine.passes(49)
    machine.submit(gpus=1, time_limit_s=100_000)
    machine.passes(2)
    assert machine[2].target == "slurm" and machine[3].state is JobState.RUNNING


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"on": "slurm"}, "--overflow cannot be combined with --on"),
        ({"array": "1-3"}, "--overflow cannot be combined with --array"),
        ({"nodes": 2}, "--overflow cannot be combined with --nodes"),
        ({"race": ("n1_gpu1", "n2_gpu1")}, "--overflow cannot be combined with --race"),
        ({"overflow": ""}, "--overflow-after needs"),
    ],
)
def test_options_that_exclude_overflow(fields, said):
    with pytest.raises(UsageError, match=said):
        check_rules(spec(**{"overflow": "slurm", "overflow_after_s": 5} | fields), DEFAULT_SPEC)
