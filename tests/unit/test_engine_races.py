"""Races between this machine and a cluster: the side with the claim token runs the job."""

from __future__ import annotations

import pytest

from gflow.core.events import RemoteStatus, Seen
from gflow.core.forecast.wait_report import wait_report
from gflow.core.model import JobState
from gflow.core.reasons import WITHDRAWN
from gflow.errors import Refused, UsageError
from gflow.store.port import address_of
from gflow.wire.requests import JobRequest, Reader

from .machine import Machine, gpu, key_of

RACE = {"on": "slurm", "race": ("local:n1_gpu1", "n2_gpu1"), "gpus": 1}


def busy() -> Machine:
    """One GPU, which job 1 has; job 2 races, and Slurm has it as attempt 1."""
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(**RACE)
    return machine


def begins_there(machine: Machine, job: int = 2, attempt: int = 1) -> None:
    machine.hears(
        Seen, statuses=(RemoteStatus(key=key_of(job), attempt=attempt, running=True, id="7", nodes="n1"),)
    )


def test_race_with_local_room_starts_locally():
    machine = Machine(gpu(0))
    machine.submit(**RACE)
    assert (machine[1].state, machine[1].target, machine[1].gpu_ids) == (JobState.RUNNING, "local", (0,))
    assert not any("handed over" in line for line in machine.did)


def test_race_without_local_room_is_handed_over():
    machine = busy()
    assert "note 2 handed over: attempt 1 to slurm" in machine.did
    assert (machine[2].state, machine[2].target) == (JobState.QUEUED, "slurm")
    assert machine[2] in machine.state.ready
    codes = [why.code for why in wait_report(machine.state, machine[2], machine.now).blockers]
    assert codes[0] == "Submitting" and "Resources" in codes


def test_local_room_withdraws_the_race_and_keeps_the_gpus():
    machine = busy()
    machine.ends(1)
    assert "withdraw 2 #1" in machine.did and not any(line.startswith("start") for line in machine.did)
    machine.submit(gpus=1)
    assert machine[3].state is JobState.QUEUED, "the GPU is kept"
    machine.ends(2, None, problem=WITHDRAWN)
    assert (machine[2].state, machine[2].target, machine[2].attempt) == (JobState.RUNNING, "local", 2)
    assert machine[2].gpu_ids == (0,) and "start 2 #2" in machine.did
    assert machine[3].state is JobState.QUEUED


def test_race_won_by_cluster_frees_local_gpus():
    machine = busy()
    machine.ends(1)
    machine.submit(gpus=1)
    begins_there(machine)
    assert (machine[2].state, machine[2].target, machine[2].attempt) == (JobState.RUNNING, "slurm", 1)
    assert machine[3].state is JobState.RUNNING and machine[3].gpu_ids == (0,)
    machine.ends(2, 0)
    assert machine[2].state is JobState.FINISHED


def test_race_begins_on_cluster_without_local_room():
    machine = busy()
    begins_there(machine)
    machine.ends(1)
    assert machine[2].target == "slurm" and not any(
        line.startswith(("withdraw", "start")) for line in machine.did
    )


def test_race_that_ended_on_cluster_before_its_start_report():
    machine = busy()
    machine.ends(1)
    machine.ends(2, 3)
    assert (machine[2].state, machine[2].exit_code) == (JobState.FAILED, 3)
    assert machine.state.machine.idle == {0}


@pytest.mark.parametrize("kept", [False, True])
def test_cancel_and_hold_free_the_kept_gpus(kept):
    for act in ("cancel", "hold"):
        machine = busy()
        if kept:
            machine.ends(1)
        getattr(machine, act)(2)
        assert machine.state.machine.idle == ({0} if kept else set())
        machine.ends(2, None, problem=WITHDRAWN)
        assert machine[2].state is (JobState.CANCELLED if act == "cancel" else JobState.HOLD)


def test_released_job_races_again():
    machine = busy()
    machine.hold(2)
    machine.release(2)
    assert machine[2] in machine.state.ready
    machine.ends(2, None, problem=WITHDRAWN)
    assert machine[2].attempt == 2 and machine[2].target == "slurm" and machine[2] in machine.state.ready


def test_a_retry_races_again():
    machine = Machine(gpu(0))
    machine.submit(**RACE, max_retries=1, retry_delay_s=0)
    machine.submit(gpus=1, priority=200)
    machine.ends(1, 1)
    assert machine[2].state is JobState.RUNNING
    assert (machine[1].target, machine[1].attempt) == ("slurm", 2) and machine[1] in machine.state.ready


def test_cap_counts_a_race_once():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(**RACE, max_concurrent=1, group=2)
    machine.ends(1)
    assert "withdraw 2 #1" in machine.did


def test_race_impossible_on_this_machine_is_refused():
    with pytest.raises(Refused, match="asks for 4 GPUs"):
        Machine(gpu(0)).submit(on="slurm", race=("local:n1_gpu4", "n4_gpu1"), gpus=4)


@pytest.mark.parametrize(
    ("race", "options", "means"),
    [
        ("local:n1_gpu2,n4_gpu1", {}, ("slurm", 2, ("local:n1_gpu2", "n4_gpu1"))),
        ("n4_gpu1,local:1x2", {"on": "gil"}, ("gil", 2, ("local:n1_gpu2", "n4_gpu1"))),
        ("gil:n4_gpu1,gil:n1_gpu4", {}, ("gil", 0, ("n4_gpu1", "n1_gpu4"))),
        ("n4_gpu1,n1_gpu4", {}, ("", 0, ("n4_gpu1", "n1_gpu4"))),
    ],
)
def test_race_syntax(race, options, means):
    reader = Reader(address_of)
    job, _ = reader.read(JobRequest(command=["true"], cwd="/", options={"race": race} | options))
    assert (job.spec.on, job.spec.gpus, job.spec.race) == means


@pytest.mark.parametrize(
    ("race", "options", "said"),
    [
        ("local:n2_gpu2,n4_gpu1", {}, "one node"),
        ("local:n1_gpu2,local:n1_gpu1", {}, "others of a cluster"),
        ("local:n1_gpu2,local:n1_gpu1,n1_gpu4", {}, "takes one shape of it"),
        ("local:n1_gpu2,a:n4_gpu1,b:n4_gpu1", {}, "one cluster only, not a and b"),
        ("a:n4_gpu1,n1_gpu1", {"on": "b"}, "one cluster only, not a and b"),
        ("local:n1_gpu2,n4_gpu1", {"gpus": 3}, "are contradictory"),
        ("local:n1_gpu2,n4_gpu1", {"array": "1-3"}, "not for arrays"),
        ("local,n4_gpu1", {}, "there is no shape 'local'"),
    ],
)
def test_races_that_are_refused(race, options, said):
    reader = Reader(address_of)
    with pytest.raises(UsageError, match=said):
        reader.read(JobRequest(command=["true"], cwd="/", options={"race": race} | options))
