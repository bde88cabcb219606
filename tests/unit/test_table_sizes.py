"""No dictionary or set of the engine holds all jobs: one of a million keys holds the loop when it grows."""

import gc
from types import FunctionType, MethodType, ModuleType

import msgspec
import pytest

from gflow.core.engine import step
from gflow.core.events import Arrive, Cancel, Claim, Close, Open, Stage
from gflow.core.ids import job_key
from gflow.core.model import Moment
from gflow.core.state.state import PART, State

from .builders import NOON, spec

AT = Moment(NOON, 1000.0)
# The keys of one part: job numbers and no tasks.
MOST = 1 << 12
COUNT = 2 * MOST
# One request has one tuple of it.
AFTER = (job_key(1),)
NOT_STATE = (type, ModuleType, FunctionType, MethodType, msgspec.Struct)

SCENES = {
    "same name": lambda number: {"name": "run"},
    "names of their own": lambda number: {"name": f"run{number}"},
    "held": lambda number: {"hold": True},
    "later": lambda number: {"begin_at": NOON + 1000},
    "after the first": lambda number: {"depends_on": AFTER},
}


def largest(state):
    """The largest dictionary or set that the state reaches, and what is in it."""
    seen, stack, found = set(), [state], (0, "")
    while stack:
        one = stack.pop()
        if id(one) in seen or isinstance(one, NOT_STATE):
            continue
        seen.add(id(one))
        if isinstance(one, dict | set):
            found = max(found, (len(one), repr(one)[:60]))
        stack += gc.get_referents(one)
    return found


def stage(state, first, options):
    step(state, Open(at=AT, uid=1001, user="ann", count=COUNT))
    for start in range(first, first + COUNT, PART):
        numbers = range(start, min(start + PART, first + COUNT))
        specs = tuple(spec(allow_unsatisfiable=True, **options(number)) for number in numbers)
        step(state, Stage(at=AT, first=first, specs=specs, outcomes={}))
        yield


@pytest.mark.parametrize("scene", SCENES)
def test_no_table_grows_with_all_jobs(scene):
    state = State(cpus=0, memory_mib=1024)
    step(state, Open(at=AT, uid=1001, user="ann", count=1))
    step(state, Stage(at=AT, first=1, specs=(spec(allow_unsatisfiable=True),), outcomes={}))
    step(state, Close(at=AT, uid=1001, first=1))
    step(state, Arrive(at=AT, most=PART, first=1))
    for _ in stage(state, 2, SCENES[scene]):
        pass
    assert largest(state)[0] <= MOST, f"staged: {largest(state)}"
    step(state, Close(at=AT, uid=1001, first=2))
    assert largest(state)[0] <= MOST, f"closed: {largest(state)}"
    while state.arriving:
        step(state, Arrive(at=AT, most=PART, first=2))
    assert len(state.jobs) == COUNT + 1
    assert largest(state)[0] <= MOST, f"in the queue: {largest(state)}"
    keys = [job_key(number) for number in range(COUNT + 1, 1, -1)]
    for start in range(0, len(keys), PART):
        some = tuple(keys[start : start + PART])
        step(state, Claim(at=AT, action=Cancel(at=AT, uid=1001, keys=some)))
    assert largest(state)[0] <= MOST, f"claimed: {largest(state)}"
    for start in range(0, len(keys), PART):
        step(state, Cancel(at=AT, uid=1001, keys=tuple(keys[start : start + PART])))
        state.jobs.ended.clear()
    assert len(state.jobs) == 1 and not state.claimed
    assert largest(state)[0] <= MOST, f"cancelled: {largest(state)}"
