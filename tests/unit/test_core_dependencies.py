import pytest

from gflow.core.ids import job_key
from gflow.core.model import JobState
from gflow.core.state.dependencies import Wait, ancestors

from .builders import job, spec

A, B, C = job_key(1), job_key(2), job_key(3)
DONE, FAILED, CANCELLED = JobState.FINISHED, JobState.FAILED, JobState.CANCELLED


def wait_for(all_of=(), any_of=(), **ended):
    names = {"a": A, "b": B, "c": C}
    outcomes = {names[name]: state for name, state in ended.items()}
    return Wait.of(spec(depends_on=tuple(all_of), depends_any=tuple(any_of)), outcomes.get, lambda key: False)


@pytest.mark.parametrize(
    ("wait", "over", "parents", "broken"),
    [
        (wait_for(), True, set(), None),
        (wait_for([A, B]), False, {A, B}, None),
        (wait_for([A, B], a=DONE), False, {B}, None),
        (wait_for([A, B], a=DONE, b=DONE), True, set(), None),
        (wait_for([A, B], a=FAILED), False, {B}, A),
        (wait_for([A, B], a=CANCELLED, b=FAILED), False, set(), A),
        (wait_for([A], a=JobState.TIMEOUT), False, set(), A),
        (wait_for(any_of=[A, B]), False, {A, B}, None),
        (wait_for(any_of=[A, B], a=FAILED), False, {B}, None),
        (wait_for(any_of=[A, B], b=DONE), True, set(), None),
        (wait_for(any_of=[A, B], a=FAILED, b=DONE), True, set(), None),
        (wait_for(any_of=[A, B], a=FAILED, b=FAILED), False, set(), B),
        (wait_for([A], [B, C], b=DONE), False, {A}, None),
        (wait_for([A], [B, C], a=DONE), False, {B, C}, None),
        (wait_for([A], [B, C], a=FAILED, b=DONE), False, set(), A),
        (wait_for([A], [A, B], a=DONE), True, set(), None),
    ],
    ids=range(16),
)
def test_remaining_parents(wait, over, parents, broken):
    assert (wait.is_over, wait.parents, wait.broken) == (over, parents, broken)


@pytest.mark.parametrize(
    ("wait", "ends", "over", "parents", "broken"),
    [
        (wait_for([A, B]), [(A, DONE)], False, {B}, None),
        (wait_for([A, B]), [(A, DONE), (B, DONE)], True, set(), None),
        (wait_for([A, B]), [(B, FAILED)], False, {A}, B),
        (wait_for([A, B]), [(B, FAILED), (A, FAILED)], False, set(), B),
        (wait_for(any_of=[A, B]), [(A, FAILED)], False, {B}, None),
        (wait_for(any_of=[A, B]), [(A, FAILED), (B, CANCELLED)], False, set(), B),
        (wait_for(any_of=[A, B]), [(A, DONE)], True, set(), None),
        (wait_for(any_of=[A, B]), [(A, DONE), (B, FAILED)], True, set(), None),
        (wait_for([A], [B, C]), [(B, DONE)], False, {A}, None),
        (wait_for([A], [A, B]), [(A, DONE)], True, set(), None),
        (wait_for([A], [A, B]), [(A, FAILED)], False, {B}, A),
        (wait_for([A]), [(C, FAILED)], False, {A}, None),
    ],
    ids=range(12),
)
def test_parents_end(wait, ends, over, parents, broken):
    for key, state in ends:
        wait.parent_ended(key, state)
    assert (wait.is_over, wait.parents, wait.broken) == (over, parents, broken)


def test_waits_are_equal_if_they_wait_for_the_same():
    assert wait_for([A, B], b=DONE) == wait_for([A])
    assert wait_for([A]) != wait_for(any_of=[A])
    assert wait_for([A, B], a=FAILED) == wait_for([C, B], c=FAILED), "whose fault it was is another matter"
    assert wait_for([A, B], a=FAILED) != wait_for([B])
    assert wait_for() != "a wait"


# ---------------------------------------------------------------- cycles


def jobs_of(*found):
    return {one.key: one for one in found}


CHAIN = jobs_of(job(1), job(2, depends_on=(A,)), job(3, depends_any=(B,)))
SEVEN = jobs_of(job(7, depends_on=(A,)), job(7, task=0), job(1))


@pytest.mark.parametrize(
    ("jobs", "start", "goal", "found"),
    [
        (CHAIN, [], A, False),
        (CHAIN, [A], A, True),
        (CHAIN, [C], A, True),
        (CHAIN, [C], B, True),
        (CHAIN, [A], C, False),
        (CHAIN, [job_key(9), C], A, True),
        (CHAIN, [job_key(9)], job_key(8), False),
        (CHAIN, [job_key(9)], job_key(9), True),
        (SEVEN, [job_key(7, 3)], A, True),
        (SEVEN, [job_key(7, 3)], job_key(7), True),
        (SEVEN, [job_key(7, 0)], A, False),
        (SEVEN, [job_key(7, 0)], job_key(7, 0), True),
        (jobs_of(job(1, depends_on=(B,)), job(2, depends_on=(A,))), [A], C, False),
    ],
    ids=range(13),
)
def test_ancestors_of_a_job(jobs, start, goal, found):
    assert (goal in ancestors(jobs, start)) is found


def test_many_paths_are_walked_once():
    """Each layer has two parents in the one below: 2**60 paths, 120 jobs."""
    jobs = jobs_of(
        *(
            job(
                2 * layer + side,
                depends_on=(job_key(2 * layer - 2), job_key(2 * layer - 1)) if layer > 1 else (),
            )
            for layer in range(1, 61)
            for side in (0, 1)
        )
    )
    assert job_key(999) not in ancestors(jobs, [job_key(120)])
    assert job_key(2) in ancestors(jobs, [job_key(120)])
