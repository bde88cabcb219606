"""A private daemon runs every job as its own user, so it takes, keeps and starts jobs of that user alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gflow.core.effects import Start
from gflow.core.engine import step
from gflow.core.events import Submit
from gflow.core.invariants import check
from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.core.state.state import State
from gflow.daemon.execution.executor import Executor
from gflow.errors import Refused
from gflow.testing import FakeTarget, running

from .builders import UIDS, spec
from .test_daemon_perform import SETTINGS, Store

BOB = UIDS["bob"]
SUBMIT = Submit(at=Moment(0.0, 0.0), uid=UIDS["ann"], user="ann", specs=(spec(),), outcomes={})


def state_of(owner: int | None) -> State:
    return State(cpus=4, memory_mib=1024, policy=Policy(owner=owner))


def test_foreign_job_in_private_state_breaks_invariant() -> None:
    state = state_of(None)
    step(state, SUBMIT)
    check(state)
    state.policy = Policy(owner=BOB)
    with pytest.raises(AssertionError, match="only"):
        check(state)


@pytest.mark.parametrize("owner", [BOB, None])
def test_foreign_submission_to_private_daemon_is_refused(owner: int | None) -> None:
    state = state_of(owner)
    if owner is None:
        assert step(state, SUBMIT)
        return
    with pytest.raises(Refused, match="alone"):
        step(state, SUBMIT)
    assert not state.jobs


def test_a_start_of_another_users_job_by_a_private_daemon_fails() -> None:
    """However it got into the state: nothing of it reaches a shim."""
    state, ends = state_of(BOB), []
    target = FakeTarget(ends.append)
    leases = SimpleNamespace(paths=lambda indices: [])
    executor = Executor(SETTINGS, Store(), target, leases, lambda: state, ends.append)  # type: ignore[arg-type]
    one = running(1)
    assert one.uid != BOB
    state.add(one)
    executor([Start(one.key, one.attempt)])
    assert not target.started
    (ended,) = ends
    assert str(ended.end.problem).startswith("StartFailed: it belongs to uid")
