"""Jobs that make way for others, because they said they would."""

from __future__ import annotations

import pytest

from gflow.core.model import Moment

from .machine import Machine, gpu


def machine_with(*asked, gpus=2, careful=True):
    machine = Machine(*map(gpu, range(gpus)), careful=careful)
    for fields in asked:
        machine.submit(**{"gpus": 1, **fields})
        machine.passes(60)
    return machine


WAY = {"preemptible": True}


def test_preempted_job_is_stopped_queued_and_restarted():
    machine = machine_with({"gpus": 2, **WAY})
    machine.submit(gpus=1)
    assert machine.did[-3:] == [
        "save 1 Running/stopping", "note 1 preempted: makes way for job 2", "stop 1 #1",
    ]  # fmt: skip
    assert str(machine[1].reason) == "Preempted: 2"
    machine.ends(1, code=0)  # whatever it leaves with: it was asked to go
    assert machine.running() == ["2"]
    assert machine.stands(1).startswith("Queued (Resources")
    machine.ends(2)
    assert (machine.running(), machine[1].attempt) == (["1"], 2)
    machine.ends(1)
    assert machine.stands(1) == "Finished"


@pytest.mark.parametrize(
    ("runs", "waits"),
    [
        ({}, {}),
        ({}, {"priority": 99}),
        (WAY, WAY),
        ({**WAY, "priority": 11}, {}),
        ({**WAY, "priority": 11}, WAY),
    ],
)
def test_job_that_is_not_preemptible_or_lower_is_not_preempted(runs, waits):
    machine = machine_with({"gpus": 2, **runs})
    machine.submit(gpus=1, **waits)
    assert not any(line.startswith("stop") for line in machine.did)


@pytest.mark.parametrize(("runs", "waits"), [({**WAY, "priority": 9}, WAY), (WAY, {"priority": 11, **WAY})])
def test_higher_priority_preempts_among_preemptible_jobs(runs, waits):
    machine = machine_with({"gpus": 2, **runs})
    machine.submit(gpus=1, **waits)
    assert machine.did[-1] == "stop 1 #1"


def test_preemption_stops_fewest_and_youngest_jobs():
    machine = machine_with(WAY, WAY, {"gpus": 2, **WAY}, {}, gpus=5)
    machine.submit(gpus=2)
    assert [line for line in machine.did if line.startswith("stop")] == ["stop 3 #1"]
    machine.submit(gpus=1)
    assert [line for line in machine.did if line.startswith("stop")] == ["stop 2 #1"]


def test_no_job_is_preempted_if_the_other_cannot_start():
    machine = machine_with(WAY, {})
    machine.submit(gpus=2)
    assert not any(line.startswith("stop") for line in machine.did)


def test_gpus_of_preempted_jobs_are_not_given_to_others():
    machine = machine_with(WAY, WAY, careful=False)
    wide = machine.submit(gpus=2)
    machine.ends(1)
    assert machine.submit(gpus=1) == wide + 1
    assert machine.running() == ["2"], "the first GPU is kept for the wide job"
    machine.ends(2)
    assert machine.running() == [str(wide)]


def test_preempted_job_may_be_cancelled_while_stopping():
    machine = machine_with({"gpus": 2, **WAY})
    machine.submit(gpus=1)
    machine.cancel(1)
    machine.ends(1, code=None, signal=15)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"
    assert machine.running() == ["2"]


def test_running_job_may_become_preemptible():
    machine = machine_with({"gpus": 2})
    machine.submit(gpus=1)
    machine.update(1, preemptible=True)
    assert machine.did[-1] == "stop 1 #1"


def test_a_task_of_an_array_makes_way_and_comes_again():
    machine = machine_with({"array": "0-1", **WAY})
    machine.submit(gpus=1)
    assert machine.did[-1].startswith("stop 1_")
    machine.ends("1_1", code=143)
    assert machine.running() == ["1_0", "2"]
    machine.ends(2)
    assert machine.running() == ["1_0", "1_1"]


def test_preempted_gpus_go_to_first_job_of_same_class():
    machine = machine_with(WAY, {}, {}, gpus=4)
    machine.submit(gpus=2, hold=True)
    machine.submit(gpus=2)
    assert machine.did[-1] == "stop 1 #1"
    machine.release(4)  # the same as 5, and it came before
    machine.ends(2)
    assert machine.running() == ["1", "3", "4"]


def test_no_job_starts_early_when_clock_is_set_back():
    machine = machine_with({"gpus": 2, **WAY})
    machine.submit(gpus=1, begin_at=machine.now.wall + 60)
    machine.passes(61)
    assert machine.did[-1] == "stop 1 #1"
    machine.now = Moment(machine.now.wall - 3600, machine.now.boot + 1)
    machine.ends(1)
    assert machine.running() == ["1"], "2 waits for its time again"
