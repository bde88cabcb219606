"""The cloud takes the machine away: jobs are stopped with the time that is left, and go back if they may."""

from __future__ import annotations

import pytest

from gflow.core.events import Drain, Reclaimed

from .machine import Machine, gpu

WHY = "aws will reclaim this machine (terminate)"


def machine_with(*asked):
    machine = Machine(*map(gpu, range(4)))
    for fields in asked:
        machine.submit(**{"gpus": 1, **fields})
        machine.passes(60)
    return machine


def test_spot_notice_requeues_or_fails_jobs():
    machine = machine_with({"requeue": True}, {"preemptible": True}, {}, {"max_retries": 1})
    machine.submit(gpus=1)
    machine.hears(Reclaimed, why=WHY, left_s=120.0)
    assert [machine[at].stopping.value for at in (1, 2, 3)] == ["Queued", "Queued", "Failed"]
    for at in (1, 2, 3, 4):
        machine.ends(at, code=0 if at < 3 else 1)
    assert machine.running() == [], "nothing more starts"
    assert machine.stands(1) == f"Queued (Drained: {WHY})"
    assert machine.stands(2) == f"Queued (Drained: {WHY})"
    assert machine.stands(3) == f"Failed (Preempted: {WHY})"
    assert machine[4].retries == 1
    machine.hears(Reclaimed, why="")
    assert machine.running()[:2] == ["1", "2"] and machine[1].attempt == 2


@pytest.mark.parametrize(("left_s", "grace_s"), [(120.0, 115), (30.0, 25), (6.5, 2), (0.0, 2), (None, 0)])
def test_spot_notice_limits_grace_to_the_time_left(left_s, grace_s):
    machine = machine_with({"requeue": True})
    machine.hears(Reclaimed, why=WHY, left_s=left_s)
    assert machine.did[-1] == "stop 1 #1" + (f" in {grace_s} s" if grace_s else "")


def test_spot_notice_ignores_stopping_job_ends_by_resume():
    machine = machine_with({"requeue": True})
    machine.cancel(1)
    machine.hears(Reclaimed, why=WHY, left_s=120.0)
    assert machine.did == [f"note machine spot notice: {WHY}"]
    machine.ends(1)
    assert machine.stands(1).startswith("Cancelled")
    machine.submit(gpus=1)
    assert machine.running() == []
    machine.hears(Drain, uid=0, on=False)
    assert machine.running() == ["2"]
