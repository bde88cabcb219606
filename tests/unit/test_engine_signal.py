"""Signals that users send to running jobs."""

import pytest

from gflow.core.effects import AddAuditEntry, Warn
from gflow.core.engine import step
from gflow.core.events import SendSignal
from gflow.core.ids import job_key
from gflow.errors import Forbidden

from .builders import UIDS
from .machine import Machine


def send(machine, *keys, user="ann", is_operator=False):
    event = SendSignal(
        at=machine.now, uid=UIDS[user], is_operator=is_operator, keys=keys, number=10, name="SIGUSR1"
    )
    return step(machine.state, event)


def test_a_signal_goes_to_running_jobs_and_is_noted():
    machine = Machine(cpus=2)
    machine.submit()
    machine.submit(hold=True)
    machine.submit()
    machine.ends(3)
    effects = send(machine, job_key(1), job_key(2), job_key(3))
    assert effects == [AddAuditEntry(job_key(1), "signal", "SIGUSR1"), Warn(job_key(1), 1, 10)]
    assert effects[0].is_personal
    assert machine.running() == ["1"]


def test_a_signal_to_an_array_goes_to_its_running_tasks():
    machine = Machine(cpus=2)
    machine.submit(array="0-3")
    warned = [effect.key for effect in send(machine, job_key(1)) if isinstance(effect, Warn)]
    assert warned == [job_key(1, 0), job_key(1, 1)]
    assert send(machine, job_key(1, 3)) == [], "it waits in its array"


def test_a_signal_to_a_job_of_another_user_is_for_operators():
    machine = Machine()
    machine.submit()
    with pytest.raises(Forbidden):
        send(machine, job_key(1), user="bob")
    assert send(machine, job_key(1), user="bob", is_operator=True)
