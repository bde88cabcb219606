from gflow.core.ids import job_key, label
from gflow.testing import progress
from gflow.text.tree import DEEPEST, Forest

from .builders import job


def drawn(*jobs):
    forest = Forest()
    for one in jobs:
        forest.add((one, None))
    list(forest.link())
    return [before + ("" if entry else "→ ") + label(key) for before, key, entry in forest.walk()]


def after(number, *parents, **more):
    return job(number, depends_on=tuple(map(job_key, parents)), **more)


def test_jobs_stand_below_those_they_wait_for():
    assert drawn(job(1), after(2, 1), after(3, 2), after(4, 1), job(5)) == [
        "1",
        "├─ 2",
        "│  ╰─ 3",
        "╰─ 4",
        "5",
    ]


def test_a_further_parent_refers_to_the_line_that_is_there():
    assert drawn(job(1), job(2), after(3, 1, 2), after(4, 3)) == ["1", "╰─ 3", "   ╰─ 4", "2", "╰─ → 3"]


def test_a_parent_that_is_not_listed_is_none():
    assert drawn(after(3, 1, 2), after(4, 2, 3)) == ["3", "╰─ 4"]


def test_any_of_several_parents_is_a_parent():
    assert drawn(job(1), job(2, depends_any=(job_key(1),))) == ["1", "╰─ 2"]


def test_child_of_task_is_below_line_of_array():
    array = job(1, array="0-9", progress=progress("4-9"))
    begun = job(1, task=3)
    children = job(2, depends_on=(job_key(1, 3),)), job(3, depends_on=(job_key(1, 7),))
    assert drawn(array, begun, *children) == ["1", "╰─ 3", "1_3", "╰─ 2"]


def test_a_circle_is_drawn_once():
    assert drawn(after(1, 3), after(2, 1), after(3, 2)) == ["1", "╰─ 2", "   ╰─ 3", "      ╰─ → 1"]
    assert drawn(after(1, 1)) == ["1"]


def test_a_long_chain_is_neither_deep_nor_slow():
    chain = [job(1), *(after(number, number - 1) for number in range(2, 5001))]
    lines = drawn(*chain)
    assert len(lines) == 5000
    assert max(map(len, lines)) <= 3 * DEEPEST + 10


def test_a_job_below_two_jobs_twice_is_there_once_for_each():
    assert drawn(job(1), after(2, 1, 1)) == ["1", "╰─ 2"]


def test_a_job_that_was_made_from_another_hangs_by_a_dashed_line():
    again = job(3, redone_from=job_key(1))
    assert drawn(job(1), after(2, 1), again, after(4, 3)) == ["1", "├─ 2", "╰┄ 3", "   ╰─ 4"]
    assert drawn(job(1), job(2), after(3, 2, redone_from=job_key(1))) == ["1", "╰┄ 3", "2", "╰─ → 3"]
