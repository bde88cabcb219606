"""Quotas at submission: a job that could never start under them is refused, others wait."""

import pytest

from gflow.core.events import SetQuota
from gflow.core.state.quotas import PROJECT, USER, Limits
from gflow.errors import Refused

from .machine import Machine, gpu


def limited(scope: str = USER, name: str = "", **limits: int) -> Machine:
    machine = Machine(*map(gpu, range(8)))
    machine.hears(SetQuota, uid=0, scope=scope, name=name, limits=Limits(**limits))
    return machine


@pytest.mark.parametrize(
    ("scope", "name", "limits", "asked", "why"),
    [
        (USER, "", {"max_running_gpus": 4}, {"gpus": 8},
         "the job asks for 8 GPUs, and the quota of ann is 4"),
        (USER, "ann", {"max_running_gpus": 0}, {"gpus": 1},
         "the job asks for 1 GPU, and the quota of ann is 0"),
        (USER, "ann", {"max_running_jobs": 0}, {}, "the quota of ann allows no running jobs"),
        (PROJECT, "vision", {"max_running_gpus": 2}, {"gpus": 3, "project": "vision"},
         "the job asks for 3 GPUs, and the quota of project vision is 2"),
    ],
)  # fmt: skip
def test_job_that_could_never_start_under_its_quota_is_refused(scope, name, limits, asked, why):
    machine = limited(scope, name, **limits)
    error = machine.refusal(machine.submit, **asked)
    assert (type(error), error.message, error.advice.key) == (Refused, why, "queue_over_quota")
    error = machine.refusal(machine.submit_specs, {}, asked) if "gpus" in asked else error
    assert error.message == why, "also among others"
    number = machine.submit(**asked, allow_unsatisfiable=True)
    assert machine.stands(number) == f"Queued (Quota: {why})"


def test_job_within_its_quota_waits_for_others_of_the_user():
    machine = limited(max_running_gpus=4)
    machine.submit(gpus=3)
    machine.submit(gpus=4)
    assert machine.running() == ["1"]
    assert machine.stands(2) == "Queued (Quota: ann has 3 of 4 GPUs, and this needs 4)"
    error = machine.refusal(machine.update, 2, gpus=5)
    assert error.message == "the job asks for 5 GPUs, and the quota of ann is 4"
    machine.ends(1)
    assert machine.running() == ["2"]
