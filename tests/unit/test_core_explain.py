"""Why a job waits: the contract's words, exactly."""

import pytest

from gflow.core.forecast.explain import Blocker, explain, explain_shape
from gflow.core.model import JobState

from .builders import NOON, ended, job, running
from .machine import GIB, Machine, gpu


def four_gpus(*taken):
    """A machine of four GPUs; each number is a job with so many of them."""
    machine = Machine(*(gpu(index) for index in range(4)))
    for gpus in taken:
        machine.submit(gpus=gpus)
    return machine


@pytest.mark.parametrize(
    ("taken", "asked", "why"),
    [
        ([4], {"gpus": 1}, "Resources"),
        ([4], {"gpus": 4}, "Resources"),
        ([3], {"gpus": 4}, "Resources: Need 4 GPUs, only 1 available"),
        ([1], {"gpus": 4}, "Resources: Need 4 GPUs, only 3 available"),
        ([1, 1], {"gpus": 3, "gpu_type": "A100"}, "Resources: Need 3 GPUs, only 2 available"),
        ([4], {"gpus": 1, "shared": True, "gpu_memory_mib": 1}, "Resources"),
        ([2], {"gpus": 3, "shared": True, "gpu_memory_mib": 1}, "Resources: Need 3 GPUs, only 2 available"),
        ([], {"begin_at": NOON + 60}, "BeginTime"),
        ([], {"begin_at": NOON + 60, "hold": True}, "JobHeldUser"),
        ([4], {"depends_on": [1]}, "Dependency"),
        ([4], {"depends_any": [1]}, "Dependency"),
        ([4], {"depends_on": [1], "begin_at": NOON + 60}, "Dependency"),
        ([4], {"depends_on": [1], "gpus": 4, "hold": True}, "JobHeldUser"),
        ([4], {"gpus": 1, "array": "1-3"}, "Resources"),
        ([], {"gpus": 1, "array": "1-3", "max_concurrent": 2}, "JobArrayTaskLimit"),
        ([3], {"gpus": 1, "array": "1-3", "max_concurrent": 1}, "JobArrayTaskLimit"),
        (
            [],
            {"gpus": 5, "allow_unsatisfiable": True},
            "Resources: the job asks for 5 GPUs, and this machine has 4",
        ),
    ],
    ids=str,
)
def test_the_first_thing_that_keeps_a_job_waiting(taken, asked, why):
    machine = four_gpus(*taken)
    number = machine.submit(**asked)
    assert str(explain(machine.state, machine[number], machine.now)) == why


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, "Resources"),
        ({"cpus": 2}, "Resources: Need 2 CPUs, only 0 free"),
        ({"cpus": 0, "memory_mib": 3 * GIB}, "Resources: Need 3 GiB memory, only 1.5 GiB free"),
    ],
    ids=str,
)
def test_cpus_and_host_memory_are_named(asked, why):
    machine = Machine(cpus=2, memory_mib=4 * GIB)
    machine.submit(cpus=2, memory_mib=2560)
    machine.submit(**asked)
    assert str(explain(machine.state, machine[2], machine.now)) == why


def test_a_parent_that_failed_is_named():
    machine = four_gpus(4)
    machine.submit(depends_on=[1], no_auto_cancel=True)
    machine.ends(1, code=1)
    assert explain(machine.state, machine[2], machine.now) == Blocker("Dependency", "job 1 did not succeed")


def test_a_hold_says_why_it_was_put():
    machine = Machine()
    state, now = machine.state, machine.now
    assert explain(state, job(state=JobState.HOLD, reason="RequeueLoop"), now) == Blocker("RequeueLoop")
    assert explain(state, job(state=JobState.HOLD), now) == Blocker("JobHeldUser")


@pytest.mark.parametrize("shown", [running(1), running(1, stopping=JobState.TIMEOUT), ended(1)])
def test_a_job_that_does_not_wait_has_no_reason(shown):
    machine = Machine()
    assert explain(machine.state, shown, machine.now) is None


def test_job_that_fits_waits_for_priority():
    state = four_gpus().state
    assert explain_shape(state, job(gpus=4).spec.shape) == Blocker("Priority")


@pytest.mark.parametrize(
    ("why", "text"),
    [(Blocker("Resources"), "Resources"), (Blocker("Resources", "Need 4"), "Resources: Need 4")],
)
def test_a_reason_as_text(why, text):
    assert str(why) == text
