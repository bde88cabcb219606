"""Sets of tasks, kept as ranges, are sets; and what people write for an array means what it says."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gflow.core.task_set import TaskSet, parse_tasks
from gflow.errors import UsageError
from gflow.options.job_options import JOB
from gflow.options.values import ARRAY_LAST, ARRAY_TASKS, read_array

ARRAY = next(option for option in JOB if option.name == "array")
SMALL = st.integers(0, 30)
# The same every time, unless a seed is given.
STABLE = settings(deadline=None, derandomize="GFLOW_SEED" not in os.environ)


@st.composite
def parts(draw) -> str:
    """One part of what people write: `7`, `3-9`, `0-20:5`."""
    first = draw(SMALL)
    if draw(st.booleans()):
        return str(first)
    last = first + draw(SMALL)
    step = f":{draw(st.integers(1, 9))}" if draw(st.booleans()) else ""
    return f"{first}-{last}{step}"


ARRAYS = st.lists(parts(), min_size=1, max_size=5).map(",".join)
DISJOINT = ARRAYS.filter(lambda text: len(set(expanded(text))) == len(expanded(text)))


def expanded(text: str) -> list[int]:
    """Every task a text names, one by one, in its order."""
    tasks = []
    for part in text.split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        task = int(first)
        while task <= int(last or first):
            tasks.append(task)
            task += int(step or 1)
    return tasks


# ---------------------------------------------------------------- what people write


@STABLE
@given(ARRAYS, st.none() | st.integers(1, 9))
def test_an_array_names_what_it_says_each_task_once(text, cap):
    wanted = expanded(text)
    suffix = f"%{cap}" if cap else ""
    if len(set(wanted)) < len(wanted):
        with pytest.raises(UsageError, match="names a task twice"):
            read_array(text + suffix, ARRAY)
        return
    body, _, kept = read_array(text + suffix, ARRAY).partition("%")
    assert kept == (str(cap) if cap else "")
    assert sorted(expanded(body)) == sorted(wanted)
    assert list(parse_tasks(body)) == sorted(wanted), "in ascending order, also where ranges interleave"
    assert str(parse_tasks(body)) == body == read_array(body, ARRAY), "the form it is kept in"


@STABLE
@given(st.text("0123456789-:,% ax", max_size=12))
def test_invalid_array_is_refused_with_a_message(text):
    try:
        body = read_array(text, ARRAY).partition("%")[0]
    except UsageError as error:
        assert error.message.startswith(("--array ", "--array: "))
    else:
        assert list(parse_tasks(body)) == sorted(set(expanded(body)))


@pytest.mark.parametrize(
    ("text", "size"), [(f"1-{ARRAY_TASKS}", ARRAY_TASKS), (f"0-{ARRAY_LAST}:10", ARRAY_TASKS + 1)]
)
def test_large_arrays_stay_one_range(text, size):
    if size > ARRAY_TASKS:
        with pytest.raises(UsageError, match="at most 100,000 tasks"):
            read_array(text, ARRAY)
        return
    tasks = parse_tasks(read_array(text, ARRAY))
    assert (len(tasks), len(tasks.spans)) == (size, 1)


# ---------------------------------------------------------------- the set


@STABLE
@given(DISJOINT)
def test_a_set_of_tasks_is_a_set(text):
    tasks, model = parse_tasks(read_array(text, ARRAY)), set(expanded(text))
    assert len(tasks) == len(model)
    assert bool(tasks) == bool(model)
    assert list(tasks) == sorted(model)
    assert tasks.first == min(model)
    assert {task for task in range(-2, 70) if task in tasks} == model


class Taking(RuleBasedStateMachine):
    """A set from which tasks are taken, first ones and others, beside a plain set."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = TaskSet()
        self.model: set[int] = set()

    @precondition(lambda self: not self.model)
    @rule(text=DISJOINT | st.just("0-12:3,1-13:3,2-14:3"))
    def begin(self, text: str) -> None:
        self.tasks = parse_tasks(read_array(text, ARRAY))
        self.model = set(expanded(text))

    @precondition(lambda self: self.model)
    @rule()
    def take_first(self) -> None:
        assert self.tasks.first == min(self.model)
        self.tasks = self.tasks.without(self.tasks.first)
        self.model.remove(min(self.model))

    @rule(task=st.integers(0, 80))
    def take(self, task: int) -> None:
        self.tasks = self.tasks.without(task)
        self.model.discard(task)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take_one_of_them(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.model)))
        self.tasks = self.tasks.without(task)
        self.model.remove(task)

    @invariant()
    def same(self) -> None:
        assert list(self.tasks) == sorted(self.model)
        assert len(self.tasks) == len(self.model)
        assert bool(self.tasks) == bool(self.model)
        assert parse_tasks(str(self.tasks)) == self.tasks, "as it is stored"
        assert list(self.tasks.spans) == sorted(self.tasks.spans)
        assert all(span.size > 0 and (span.size > 1 or span.step == 1) for span in self.tasks.spans)


TestTaking = Taking.TestCase
TestTaking.settings = STABLE
