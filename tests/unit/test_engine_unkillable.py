"""Jobs that were killed and live on: they keep what they have, and say why."""

from __future__ import annotations

import pytest

from gflow.config.load import load
from gflow.core.events import Stuck
from gflow.daemon.api.handlers.gpus import blocked_of
from gflow.daemon.loop.stored_state import reload
from gflow.daemon.settings import _max_processes
from gflow.errors import UsageError
from gflow.testing import MemoryStore

from .machine import Machine, gpu, key_of

WHY = "pid 7 (cp) in D state (nfs_wait)"


def stuck(machine, attempt=1):
    return machine.hears(Stuck, key=key_of(1), attempt=attempt, detail=WHY)


def test_job_that_cannot_be_killed_is_shown_until_it_ends():
    machine = Machine(gpu(0), gpu(1))
    machine.submit(gpus=1)
    stuck(machine, attempt=2)
    assert machine.stands(1) == "Running"
    stuck(machine)
    assert machine.stands(1) == f"Running (Unkillable: {WHY})"
    assert {index: str(why) for index, why in blocked_of(machine.state).items()} == {0: "Unkillable: job 1"}
    machine.ends(1)
    assert (machine.state.running.stuck, blocked_of(machine.state)) == ({}, {})


def test_rebuilt_state_remembers_unkillable_job():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    stuck(machine)
    assert reload(machine.state, machine.store).running.stuck == machine.state.running.stuck != {}
    assert reload(machine.state, MemoryStore()).running.stuck == {}, "not of jobs that the disk does not have"


@pytest.mark.parametrize("wanted", ["5%", "100%", "0", "4096"])
def test_limit_of_processes_is_a_count_or_a_share(wanted):
    found = load({}, {"GFLOW_JOBS__MAX_PROCESSES": wanted})["jobs.max_processes"]
    assert str(found) == wanted
    assert (_max_processes(found) == 0) is (wanted == "0")


@pytest.mark.parametrize("wanted", ["0%", "101%", "%", "-1", "many"])
def test_limit_of_processes_that_means_nothing_is_refused(wanted):
    with pytest.raises(UsageError):
        load({}, {"GFLOW_JOBS__MAX_PROCESSES": wanted})
