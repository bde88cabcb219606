import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.task_set import Span, TaskSet, parse_tasks


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("", []),
        ("7", [7]),
        ("1-4", [1, 2, 3, 4]),
        ("0-90:30", [0, 30, 60, 90]),
        ("1,3,5-7", [1, 3, 5, 6, 7]),
        ("0-1:1", [0, 1]),
    ],
)
def test_a_set_as_text(text, tasks):
    found = parse_tasks(text)
    assert [*found] == tasks
    assert (len(found), bool(found)) == (len(tasks), bool(tasks))
    assert [task for task in range(100) if task in found] == tasks
    assert [*parse_tasks(str(found))] == tasks


@pytest.mark.parametrize(
    ("text", "task", "rest"),
    [
        ("1-4", 1, "2-4"),
        ("1-4", 4, "1-3"),
        ("1-4", 2, "1,3-4"),
        ("7", 7, ""),
        ("0-90:30", 30, "0,60-90:30"),
        ("0-90:30", 31, "0-90:30"),
        ("0-60:30", 30, "0,60"),
        ("1,3,5-7", 3, "1,5-7"),
        ("1-4", 9, "1-4"),
        ("", 1, ""),
    ],
)
def test_a_set_without_one_of_its_tasks(text, task, rest):
    assert str(parse_tasks(text).without(task)) == rest


def test_a_hundred_thousand_tasks_are_one_span():
    tasks = parse_tasks("0-99999")
    assert tasks.spans == (Span(0, 99_999),)
    assert (len(tasks), tasks.first) == (100_000, 0)
    assert str(tasks.without(tasks.first)) == "1-99999"


spans = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.integers(1, 4)), max_size=4)


@given(spans, st.lists(st.integers(0, 60)))
def test_taking_tasks_out_is_what_sets_do(parts, taken):
    first, made = 0, []
    for gap, count, step in parts:
        first += gap
        made.append(Span(first, first + count * step, step if count else 1))
        first += count * step + 1
    tasks, expected = (
        TaskSet(tuple(made)),
        {task for span in made for task in range(span[0], span[1] + 1, span[2])},
    )
    for task in taken:
        tasks, expected = parse_tasks(str(tasks.without(task))), expected - {task}
        assert [*tasks] == sorted(expected)
