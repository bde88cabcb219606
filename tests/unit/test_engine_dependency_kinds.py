"""Dependencies on the end, the failure and the start of other jobs, and singletons."""

import pytest

from gflow.core.ids import job_key
from gflow.errors import Refused

from .machine import Machine


def family(*children, cpus=1):
    machine = Machine(cpus=cpus)
    machine.submit()
    for asked in children:
        machine.submit(**asked)
    return machine


@pytest.mark.parametrize("code", [0, 1])
def test_a_child_of_an_end_starts_after_any_end(code):
    machine = family({"depends_end": [1]}, cpus=2)
    assert machine.stands(2) == "Queued (Dependency)"
    machine.ends(1, code=code)
    assert machine.running() == ["2"]


def test_a_child_of_an_end_starts_after_a_cancel():
    machine = family({"depends_end": [1]}, {"depends_failure": [1]}, cpus=3)
    machine.cancel(1)
    machine.ends(1, code=143)
    assert machine.running() == ["2", "3"]


def test_a_child_of_a_failure_starts_after_the_failure():
    machine = family({"depends_failure": [1]}, cpus=2)
    machine.ends(1, code=1)
    assert machine.running() == ["2"]


def test_a_child_of_a_failure_is_cancelled_after_success_with_its_own_children():
    machine = family({"depends_failure": [1]}, {"depends_on": [2]}, {"depends_end": [2]})
    machine.ends(1)
    assert machine.stands(2) == "Cancelled (DependencyFailed:1)"
    assert machine.stands(3) == "Cancelled (DependencyFailed:2)"
    assert machine.running() == ["4"]


def test_a_child_of_a_failure_may_wait_in_vain():
    machine = family({"depends_failure": [1], "no_auto_cancel": True})
    machine.ends(1)
    assert machine.stands(2) == "Queued (Dependency: job 1 did not fail)"


def test_the_failure_of_a_job_that_succeeded_is_refused_at_submission():
    machine = family()
    machine.ends(1)
    with pytest.raises(Refused, match="ended Finished: a job that depends on its failure would never start"):
        machine.submit(depends_failure=[1])


def test_a_child_of_a_start_starts_with_its_parent():
    machine = family({}, {"depends_start": [2]}, {"depends_start": [3]}, cpus=1)
    assert machine.stands(3) == "Queued (Dependency)"
    machine.ends(1)  # 2 starts, and 3 waits for resources alone
    assert machine.running() == ["2"]
    assert machine.stands(3) == "Queued (Resources)"
    assert machine.stands(4) == "Queued (Dependency)"


def test_a_chain_of_starts_starts_at_once_if_there_is_room():
    machine = Machine(cpus=4)
    machine.submit(hold=True)
    for parent in (1, 2, 3):
        machine.submit(depends_start=[parent])
    machine.release(1)
    assert machine.running() == ["1", "2", "3", "4"]


def test_a_start_that_has_happened_counts_also_if_the_parent_was_requeued():
    machine = Machine(cpus=2)
    machine.submit(max_retries=1, retry_delay_s=60)
    machine.ends(1, code=1)
    machine.submit(depends_start=[1])
    assert machine.running() == ["2"]


def test_a_parent_that_ends_without_a_start_counts_as_started():
    machine = Machine()
    machine.submit(hold=True)
    machine.submit(depends_start=[1])
    machine.cancel(1)
    assert machine.running() == ["2"]


def test_an_array_has_started_when_its_last_task_has():
    machine = Machine(cpus=1)
    machine.submit(array="0-1")
    machine.submit(depends_start=[1], cpus=0)
    machine.submit(depends_start=["1_1"], cpus=0)
    assert machine.running() == ["1_0"]
    machine.ends("1_0")
    assert machine.running() == ["1_1", "2", "3"]


def test_kinds_are_combined():
    machine = family({}, {"depends_on": [1], "depends_end": [2], "depends_start": [2]}, cpus=1)
    machine.ends(1)
    assert machine.stands(3) == "Queued (Dependency)"
    machine.ends(2, code=1)
    assert machine.running() == ["3"]


def test_a_singleton_waits_for_all_earlier_jobs_of_its_name_and_user():
    machine = Machine(cpus=9)
    machine.submit(name="train")
    machine.submit(name="other")
    machine.submit(name="train", hold=True)
    machine.submit(name="train", user="bob")
    machine.submit(name="train", singleton=True)
    machine.submit(name="train")
    assert machine[5].spec.depends_earlier == (job_key(1), job_key(3))
    machine.ends(1, code=1)
    assert machine.stands(5) == "Queued (Dependency)"
    machine.cancel(3)
    assert "5" in machine.running()


def test_singletons_of_one_submission_run_one_after_the_other():
    machine = Machine(cpus=9)
    machine.submit(name="train", singleton=True, count=3)
    assert machine.running() == ["1"]
    machine.cancel(2)
    assert machine.stands(3) == "Queued (Dependency)"
    machine.ends(1)
    assert machine.running() == ["3"]


def test_a_cycle_over_other_kinds_is_refused():
    machine = Machine(cpus=1)
    machine.submit(hold=True)
    machine.submit(depends_start=[1])
    with pytest.raises(Refused, match="would wait for itself"):
        machine.update(1, depends_end=[2])
