"""Cost follows change, not size: a step on ten times as much costs about ten times as much, and one on the
same amid ten times as many others costs the same. Counted in the interpreter's instructions, so no clock
and no busy machine decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from gflow.core.engine import step
from gflow.core.events import Arrive, Cancel, Event, Exited, GpusSeen, Submit, Tick, Unclaim, Update
from gflow.core.forecast.cancel_impact import blocked_by
from gflow.core.ids import job_key
from gflow.core.model import Gpu, Moment
from gflow.core.scheduling import scheduler
from gflow.core.state.state import State
from gflow.errors import Refused

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
    number = state.jobs.next_number
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


def parents_and_children(size: int) -> tuple[State, int]:
    """As many jobs as there are tasks, each of which waits for all of them."""
    state = State(cpus=0, memory_mib=1024)
    array = submitted(state, spec(array=f"0-{size}", allow_unsatisfiable=True))
    parents = tuple(job_key(array, task) for task in range(size))
    jobs = [spec(command=("echo", str(n)), depends_on=parents, allow_unsatisfiable=True) for n in range(size)]
    submitted(state, *jobs)
    return state, array


def submitting_after_the_same_parents(size: int) -> Callable[[], Any]:
    return lambda: parents_and_children(size)


def cancelling_after_the_same_parents(size: int) -> Callable[[], Any]:
    state, array = parents_and_children(size)
    keys = tuple(job_key(array + number) for number in range(1, size + 1))
    return stepping(state, Cancel(at=AT, uid=1001, keys=keys))


def cancelling_the_same_parents(size: int) -> Callable[[], Any]:
    """One by one: the first takes all children along."""
    state, array = parents_and_children(size)
    state.part = 10 * size
    keys = tuple(job_key(array, task) for task in range(size))
    return stepping(state, Cancel(at=AT, uid=1001, keys=keys))


def foreseeing_the_same_parents(size: int) -> Callable[[], Any]:
    state, array = parents_and_children(size)
    return lambda: blocked_by(state, [job_key(array, task) for task in range(size)])


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


@pytest.mark.parametrize(
    "scene",
    [
        submitting_after_the_same_parents,
        cancelling_after_the_same_parents,
        cancelling_the_same_parents,
        foreseeing_the_same_parents,
    ],
)
def test_jobs_with_same_parents_cost_their_sum(scene):
    few, many = instructions(scene(25)), instructions(scene(250))
    assert few > 400, "it did something"
    assert many < 13 * few


def test_updating_parents_of_many_looks_at_each_set_once():
    def updating(size: int) -> Callable[[], Any]:
        state, array = parents_and_children(size)
        keys = tuple(job_key(array + number) for number in range(1, size + 1))
        fields = {"depends_any": tuple(job_key(array, task) for task in range(size))}
        return stepping(state, Update(at=AT, uid=1001, keys=keys, fields=fields, outcomes={}))

    few, many = instructions(updating(20)), instructions(updating(200))
    assert many < 13 * few


def test_more_parents_than_memory_is_meant_for_are_refused():
    state = State(cpus=0, memory_mib=1024)
    array = submitted(state, spec(array="0-999", allow_unsatisfiable=True))
    parents = tuple(job_key(array, task) for task in range(1000))
    child = spec(depends_on=parents, allow_unsatisfiable=True)
    submitted(state, *[child] * 60)
    before = state.jobs.copy()
    for uid, user, count in ((1001, "ann", 41), (0, "root", 101)):
        with pytest.raises(Refused, match=r"at most 100,000 are allowed"):
            step(state, Submit(at=AT, uid=uid, user=user, specs=(child,) * count, outcomes={}))
    assert state.jobs == before and state.accounting.quota_usage.links == {1001: 60_000}
    submitted(state, *[child] * 40)
    step(state, Cancel(at=AT, uid=1001, keys=(job_key(array),)))
    assert state.accounting.quota_usage.links.get(1001, 0) in (0, 100_000), "cut off at once or in parts"
    while state.arriving:
        step(state, Arrive(at=AT, most=100))
    assert (
        not state.jobs
        and not state.accounting.quota_usage.links
        and not state.dependencies.children
        and not state.dependencies.awaited
    )


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
def test_cost_is_independent_of_the_number_of_jobs(scene):
    few, many = instructions(scene(100)), instructions(scene(1000))
    assert few > 100, "it did something"
    assert many < 1.3 * few


# ---------------------------------------------------------------- rounds of several users


def reserved_against_a_crowd(groups: int, *, limits: bool) -> State:
    """Bob's wide job has a start reservation, and ann waits with so many kinds of longer work."""
    state = State(cpus=1 << 20, memory_mib=1 << 30)
    gpus = tuple(Gpu(index=i, uuid=str(i), model="A100", memory_mib=81920, simulated=True) for i in range(8))
    step(state, GpusSeen(at=Moment(0.0, 0.0), gpus=gpus))

    def submit(at: float, uid: int, *specs: Any) -> None:
        step(state, Submit(at=Moment(at, at), uid=uid, user=str(uid), specs=specs, outcomes={}))

    submit(1.0, 1001, *[spec(gpus=1, name="long", time_limit_s=20_000) for _ in range(5)])
    submit(2.0, 1002, spec(gpus=8, name="wide", time_limit_s=600))
    names = ["".join(chr(97 + number // 26**digit % 26) for digit in range(3)) for number in range(groups)]
    more = {"time_limit_s": 30_000} if limits else {}
    step(state, Tick(at=Moment(18_000.0, 18_000.0)))
    submit(18_001.0, 1002, spec(gpus=1, name="own", **more))
    submit(18_002.0, 1001, *[spec(gpus=1, name=name, **more) for name in names])
    return state


@pytest.mark.parametrize("limits", [False, True])
def test_cost_of_a_round_is_independent_of_waiting_groups_of_several_users(limits, monkeypatch):
    """A job that a start reservation refuses stands for the longer ones behind it, whoever reserved."""
    calls = []
    original = scheduler.placement
    monkeypatch.setattr(scheduler, "placement", lambda *given: calls.append(1) or original(*given))
    found = []
    for groups in (50, 500):
        state = reserved_against_a_crowd(groups, limits=limits)
        assert len(state.ready.groups) > groups and len(state.machine.idle) == 3
        assert state.start_reservations.entries, "there is a start reservation"
        calls.clear()
        step(state, Unclaim(at=Moment(18_003.0, 18_003.0), keys=()))
        found.append(len(calls))
    assert found[0] == found[1] < 10
