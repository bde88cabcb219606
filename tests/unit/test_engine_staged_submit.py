"""Staged submissions: what the store must learn when a job arrives."""

from __future__ import annotations

from gflow.core.effects import Save
from gflow.core.engine import step
from gflow.core.events import Arrive, Close, Open, Stage, Submit
from gflow.core.ids import job_key
from gflow.core.model import Moment
from gflow.core.state.state import State

from .builders import NOON, spec


def test_begin_time_that_comes_before_the_arrival_is_saved():
    """The job waits from its arrival on, for the next daemon as well."""
    state = State(cpus=1, memory_mib=1024)
    closed_at, arrived_at = Moment(NOON, 1000.0), Moment(NOON + 60, 1060.0)
    step(state, Submit(at=closed_at, uid=1001, user="ann", specs=(spec(),), outcomes={}))  # it has the CPU
    step(state, Open(at=closed_at, uid=1001, user="ann", count=1, projects={}, origin=""))
    step(state, Stage(at=closed_at, first=2, specs=(spec(begin_at=NOON + 30),), outcomes={}))
    step(state, Close(at=closed_at, uid=1001, first=2))
    effects = step(state, Arrive(at=arrived_at, most=1))
    job = state.jobs[job_key(2)]
    assert job.ready_at == 1060.0
    assert any(isinstance(effect, Save) and effect.job.key == job.key for effect in effects)
