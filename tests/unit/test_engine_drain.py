from gflow.core.policy import Drained

from .machine import Machine, gpu


def two_gpus():
    return Machine(gpu(0), gpu(1))


def test_drained_machine_starts_nothing_keeps_running_jobs():
    machine = two_gpus()
    machine.submit(gpus=1)
    machine.drain(reason="new disk")
    assert machine.did == ['keep drained = {"everything":"new disk"}']
    machine.submit(gpus=1)
    machine.submit()
    assert machine.running() == ["1"]
    assert machine.stands(2) == machine.stands(3) == "Queued (Drained: new disk)"
    machine.ends(1)
    assert machine.running() == []
    machine.drain(on=False)
    assert machine.did[0] == "keep drained = {}"
    assert machine.running() == ["2", "3"]


def test_a_drained_gpu_gets_no_new_jobs_and_keeps_those_it_has():
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.drain(1, reason="loud fan")
    assert machine.running() == ["1"]
    machine.submit(gpus=1)
    machine.submit(gpus=2)
    machine.ends(1)
    assert machine[2].gpu_ids == (0,)
    assert machine.stands(3) == "Queued (Resources: GPU 1 is Drained: loud fan)"
    machine.ends(2)
    assert (
        machine.stands(3) == "Queued (Resources: Need 2 GPUs, only 1 available; GPU 1 is Drained: loud fan)"
    )
    machine.drain(1, on=False)
    assert machine.running() == ["3"]


def test_draining_adds_up_and_resume_without_a_gpu_leaves_drained_gpus():
    machine = two_gpus()
    machine.drain(0, reason="a")
    machine.drain(1, reason="b")
    machine.drain(reason="c")
    machine.drain(0, on=False)
    assert machine.state.machine.drained == Drained(everything="c", gpus={1: "b"})
    machine.drain(on=False)
    assert machine.state.machine.drained == Drained(everything=None, gpus={1: "b"})
    machine.drain(1, on=False)
    assert machine.state.machine.drained == Drained()


def test_leaving_daemon_starts_nothing_next_one_does():
    machine = two_gpus()
    machine.drain(passing=True)
    assert machine.did == []
    machine.submit()
    assert machine.stands(1) == "Queued (Drained)"


def test_a_gpu_that_is_not_there_cannot_be_drained():
    machine = two_gpus()
    assert machine.refusal(machine.drain, 0, 7).message == "there is no GPU 7 here"


def test_resume_of_all_ends_drain_of_leaving_daemon():
    """`gflowd down --kill-jobs` was interrupted."""
    machine = two_gpus()
    machine.drain(passing=True)
    machine.submit()
    assert machine.running() == []
    machine.drain(0, on=False)
    assert machine.running() == []
    machine.drain(on=False)
    assert machine.running() == ["1"]
