"""Cost follows change, not size: a step on ten times as much costs about ten times as much, and one on the
same amid ten times as many others costs the same. Counted in the interpreter's instructions, so no clock
and no busy machine decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from gflow.core.engine import step
from gflow.core.events import Cancel, Event, Exited, Submit
from gflow.core.foresight import blocked_by
from gflow.core.ids import job_key
from gflow.core.model import Moment
from gflow.core.state import State

from .builders import NOON, spec

AT = Moment(NOON, 1000.0)


def instructions(work: Callable[[], Any]) -> int:
    """How many instructions of Python `work` takes."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def submitted(state: State, *specs: Any) -> int:
    number = state.next_number
    step(state, Submit(at=AT, uid=1001, user="ann", specs=specs, outcomes={}))
    return number


def stepping(state: State, event: Event) -> Callable[[], Any]:
    return lambda: step(state, event)


def scattered(size: int, gap: int = 3) -> str:
    return ",".join(map(str, range(0, size * gap, gap)))


def cancelling_scattered_tasks(size: int) -> Callable[[], Any]:
    state = State(cpus=0, memory_mib=1024)
    number = submitted(state, spec(array=f"0-{size * 2}", allow_unsatisfiable=True))
    keys = tuple(job_key(number, task) for task in range(0, size * 2, 2))
    return stepping(state, Cancel(at=AT, uid=1001, keys=keys))


def cancelling_interleaved_tasks(size: int) -> Callable[[], Any]:
    state = State(cpus=0, memory_mib=1024)
    array = f"0-{size * 4}:2,1-{size * 4 + 1}:2"
    number = submitted(state, spec(array=array, allow_unsatisfiable=True))
    keys = tuple(job_key(number, task) for task in range(0, size * 4, 4))
    return stepping(state, Cancel(at=AT, uid=1001, keys=keys))


def starting_scattered_tasks(size: int) -> Callable[[], Any]:
    state = State(cpus=size, memory_mib=1024)
    return lambda: submitted(state, spec(array=scattered(size)))


def foreseeing_a_chain(size: int) -> Callable[[], Any]:
    state = State(cpus=1, memory_mib=1024)
    for number in range(1, size + 1):
        submitted(state, spec(depends_on=(job_key(number - 1),) if number > 1 else ()))
    return lambda: blocked_by(state, [job_key(1)])


def foreseeing_arrays(size: int) -> Callable[[], Any]:
    """Each has a job that waits for one of its tasks."""
    state = State(cpus=0, memory_mib=1024)
    arrays = [submitted(state, spec(array="0-9", allow_unsatisfiable=True)) for _ in range(size)]
    for array in arrays:
        submitted(state, spec(depends_on=(job_key(array, 5),), allow_unsatisfiable=True))
    return lambda: blocked_by(state, [job_key(array) for array in arrays])


def cancelling_arrays(size: int) -> Callable[[], Any]:
    state = State(cpus=0, memory_mib=1024)
    arrays = [submitted(state, spec(array="0-9", allow_unsatisfiable=True)) for _ in range(size)]
    for array in arrays:
        submitted(state, spec(depends_on=(job_key(array, 5),), allow_unsatisfiable=True))
    return stepping(state, Cancel(at=AT, uid=1001, keys=tuple(map(job_key, arrays))))


@pytest.mark.parametrize(
    "scene",
    [
        cancelling_scattered_tasks,
        cancelling_interleaved_tasks,
        starting_scattered_tasks,
        foreseeing_a_chain,
        foreseeing_arrays,
        cancelling_arrays,
    ],
)
def test_ten_times_as_much_costs_about_ten_times_as_much(scene):
    few, many = instructions(scene(40)), instructions(scene(400))
    assert few > 400, "it did something"
    assert many < 13 * few


# ---------------------------------------------------------------- the same among others


def one_more_of_many(size: int) -> Callable[[], Any]:
    state = crowded(size)
    return lambda: submitted(state, spec(priority=3))


def one_end_among_many(size: int) -> Callable[[], Any]:
    """The next one starts in its place."""
    state = crowded(size)
    return stepping(state, Exited(at=AT, key=job_key(1), attempt=1, code=0))


def one_cancelled_of_many(size: int) -> Callable[[], Any]:
    return stepping(crowded(size), Cancel(at=AT, uid=1001, keys=(job_key(size // 2),)))


def one_task_of_many_starts(size: int) -> Callable[[], Any]:
    state = State(cpus=1, memory_mib=1024)
    submitted(state, spec(array=f"0-{size}"))
    return stepping(state, Exited(at=AT, key=job_key(1, 0), attempt=1, code=0))


def crowded(size: int) -> State:
    state = State(cpus=1, memory_mib=1024)
    for _ in range(size):
        submitted(state, spec())
    return state


@pytest.mark.parametrize(
    "scene", [one_more_of_many, one_end_among_many, one_cancelled_of_many, one_task_of_many_starts]
)
def test_the_same_among_ten_times_as_many_costs_the_same(scene):
    few, many = instructions(scene(100)), instructions(scene(1000))
    assert few > 100, "it did something"
    assert many < 1.3 * few
