"""Arrays: one record whose tasks become jobs of their own."""

import pytest

from gflow.core.events import Unclaim
from gflow.core.ids import job_key
from gflow.core.reasons import LEASED
from gflow.errors import Forbidden, NotFound, Refused
from gflow.testing import progress

from .builders import NOON
from .machine import GIB, Machine, gpu


def array(tasks="0-3", *, cpus=2, **asked):
    machine = Machine(cpus=cpus)
    machine.submit(array=tasks, **asked)
    return machine


def test_the_first_tasks_start_with_the_submission():
    machine = array("0-3")
    assert machine.did == [
        "save 1 Queued",
        "note 1 submitted",
        "accepted 1",
        "save 1 Queued",
        "save 1_0 Running",
        "note 1_0 started: attempt 1",
        "start 1_0 #1",
        "save 1 Queued",
        "save 1_1 Running",
        "note 1_1 started: attempt 1",
        "start 1_1 #1",
    ]
    assert machine[1].progress == progress("2-3", active=2)
    assert machine.stands(1) == "Queued (Resources)"


def test_a_whole_array_from_the_first_task_to_the_last():
    machine = array("0-2")
    machine.ends("1_0")
    assert (machine.running(), machine[1].state.value) == (["1_1", "1_2"], "Running")
    machine.ends("1_2")
    assert machine[1].progress == progress("", active=1, ok=2)
    machine.ends("1_1")
    assert machine.did == [
        "save 1_1 Finished",
        "note 1_1 finished",
        "save 1 Finished",
        "note 1 finished",
        "note 1 group ended: array 1: 3 finished in 0 s",
        "forget 1_1 #1",
    ]
    assert machine[1].progress == progress("", ok=3)
    assert (machine[1].exit_code, machine[1].started_at, machine[1].finished_at) == (0, NOON, NOON)
    assert not machine.state.jobs and not machine.state.jobs.tasks


def test_an_array_used_what_its_tasks_did():
    machine = array("0-2")
    machine.ends("1_0", cpu_ms=100, peak_kib=7000)
    machine.ends("1_1", code=1, cpu_ms=20, peak_kib=9000)
    assert (machine[1].cpu_ms, machine[1].peak_kib) == (120, 9000)
    machine.ends("1_2", cpu_ms=3, peak_kib=8000)
    assert (machine[1].cpu_ms, machine[1].peak_kib) == (123, 9000)


def test_tasks_start_in_the_order_they_were_written_ascending():
    machine = array("0-90:30", cpus=1)
    order = []
    while machine.running():
        order += machine.running()
        machine.ends(machine.running()[0])
    assert order == ["1_0", "1_30", "1_60", "1_90"]


def test_task_has_the_options_of_its_array():
    machine = Machine(gpu(0), gpu(1))
    machine.submit(array="7-8", gpus=1, name="sweep", user="bob")
    task = machine["1_8"]
    assert (task.key, task.task, task.number) == (job_key(1, 8), 8, 1)
    assert (task.name, task.user, task.gpu_ids, task.is_array) == ("sweep", "bob", (1,), False)


def test_no_more_tasks_run_than_the_cap():
    machine = array("1-4", cpus=9, max_concurrent=2)
    assert machine.running() == ["1_1", "1_2"]
    assert machine.stands(1) == "Queued (JobArrayTaskLimit)"
    machine.ends("1_1")
    assert machine.running() == ["1_2", "1_3"]


def test_the_cap_of_one_array_is_not_anothers():
    machine = Machine(cpus=9)
    machine.submit(array="1-4", max_concurrent=1)
    machine.submit(array="1-4", max_concurrent=2)
    assert machine.running() == ["1_1", "2_1", "2_2"]


@pytest.mark.parametrize(
    ("ends", "stands", "code"),
    [
        ([{"code": 0}, {"code": 0}], "Finished", 0),
        ([{"code": 3}, {"code": 0}], "Failed (TasksFailed:1)", 3),
        ([{"code": 3}, {"code": 2}], "Failed (TasksFailed:2)", 3),
        ([{"code": 3}, {"code": None, "signal": 9}], "Failed (TasksFailed:2)", 137),
        ([{"code": 0}, {"code": None, "problem": "Lost"}], "Failed (TasksFailed:1)", 125),
    ],
    ids=str,
)
def test_an_array_ends_as_its_tasks_did(ends, stands, code):
    machine = array("0-1")
    for task, how in enumerate(ends):
        machine.ends(f"1_{task}", **how)
    assert (machine.stands(1), machine[1].exit_code) == (stands, code)


def test_a_task_is_retried_and_counts_once():
    machine = array("0-1", max_retries=1)
    machine.ends("1_0", code=1)
    assert machine.did[-1] == "start 1_0 #2"
    assert machine[1].progress == progress("", active=2)
    machine.ends("1_0", code=1)
    machine.ends("1_1")
    assert machine[1].progress == progress("", ok=1, bad=1, worst=1)


# ---------------------------------------------------------------- cancel


def test_cancelling_an_array_that_has_not_begun():
    machine = array("0-3", hold=True)
    machine.cancel(1)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"
    assert machine[1].progress == progress("0-3"), "what never ran is still known"
    assert not machine.state.jobs


def test_cancelling_an_array_with_running_tasks():
    machine = array("0-3")
    machine.cancel(1)
    assert machine.did == [
        "note 1 cancel",
        "save 1 Running/stopping",
        "save 1_0 Running/stopping",
        "note 1_0 cancel",
        "stop 1_0 #1",
        "save 1_1 Running/stopping",
        "note 1_1 cancel",
        "stop 1_1 #1",
    ]
    machine.ends("1_0", code=None, signal=15)
    assert machine.running() == ["1_1"], "nothing more of it starts"
    machine.ends("1_1", code=0)
    assert [machine.stands(job) for job in ("1_0", "1_1", 1)] == ["Cancelled (CancelledByUser)"] * 3


def test_cancelling_a_held_array_with_running_tasks():
    machine = array("0-3")
    machine.hold(1)
    machine.cancel(1, now=True)
    assert machine.did[-1] == "stop 1_1 #1 now"
    machine.ends("1_0", code=0)
    machine.ends("1_1", code=0)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"


def test_cancelling_one_running_task_leaves_the_others():
    machine = array("0-3")
    machine.cancel("1_0")
    assert machine.did[-1] == "stop 1_0 #1"
    machine.ends("1_0", code=None, signal=15)
    assert machine.running() == ["1_1", "1_2"]


def test_cancelling_one_waiting_task_makes_it_a_record():
    machine = array("0-3")
    machine.cancel("1_3")
    assert "save 1_3 Cancelled" in machine.did
    assert machine.stands("1_3") == "Cancelled (CancelledByUser)"
    assert machine[1].progress == progress("2", active=2, cancelled=1)
    for task in (0, 1, 2):
        machine.ends(f"1_{task}")
    assert machine.stands(1) == "Cancelled (TasksCancelled:1)"


@pytest.mark.parametrize("asked", [{"memory_mib": 64 * GIB}, {"hold": True}, {"begin_at": NOON + 5}], ids=str)
def test_cancelling_every_waiting_task_ends_the_array(asked):
    machine = Machine()
    machine.submit(memory_mib=1, user="bob")
    machine.submit(array="1-3", **asked)
    before = machine[2].state.value
    machine.cancel("2_2")
    assert machine.did == [
        "note 2_2 cancel",
        "save 2_2 Cancelled",
        "note 2_2 cancelled: CancelledByUser",
        f"save 2 {before}",
    ]
    assert str(machine[2].progress.pending) == "1,3"
    machine.cancel("2_1", "2_3")
    assert machine.stands(2) == "Cancelled (TasksCancelled:3)"
    assert machine.running() == ["1"] and len(machine.state.jobs) == 1


def test_the_last_waiting_task_cancelled_leaves_the_running_ones():
    machine = array("0-2")
    machine.cancel("1_2")
    assert machine[1].state.value == "Running"
    machine.ends("1_0", code=1)
    machine.ends("1_1")
    assert machine.stands(1) == "Failed (TasksFailed:1)"


def test_an_array_and_its_task_in_one_cancel():
    machine = array("0-3")
    machine.cancel(1, "1_0", "1_3")
    assert machine.did.count("stop 1_0 #1") == 1
    assert "save 1_3 Cancelled" not in machine.did


def test_task_of_another_user_is_not_cancelled():
    machine = array("0-3")
    for task in ("1_0", "1_3"):
        error = machine.refusal(machine.cancel, task, user="bob")
        assert (type(error), error.message) == (Forbidden, f"job {task} belongs to ann")
    machine.cancel("1_3", user="root")
    assert machine.stands("1_3") == "Cancelled (CancelledByUser: root)"


def test_a_queued_retry_falls_with_its_array():
    machine = array("0-1", cpus=1, max_retries=1)
    machine.submit(priority=99)
    machine.ends("1_0", code=1)
    assert machine.running() == ["2"]
    machine.cancel(1)
    assert machine.stands("1_0") == machine.stands(1) == "Cancelled (CancelledByUser)"


# ---------------------------------------------------------------- hold, release, update


def test_held_array_starts_no_task_until_released():
    machine = array("0-3")
    machine.hold(1)
    machine.ends("1_0")
    machine.ends("1_1")
    assert (machine.running(), machine.stands(1)) == ([], "Hold (JobHeldUser)")
    machine.release(1)
    assert machine.running() == ["1_2", "1_3"]


def test_a_waiting_task_cannot_be_held_apart_from_its_array():
    machine = array("0-3")
    error = machine.refusal(machine.hold, "1_3")
    assert (error.message, error.hint) == ("task 1_3 waits in its array", "name the array: 1")


def test_an_array_all_of_whose_tasks_run_cannot_be_held():
    machine = array("0-1")
    error = machine.refusal(machine.hold, 1)
    assert (type(error), error.message) == (
        Refused,
        "job 1 is running, and only a waiting job can be held",
    )


def test_a_larger_cap_starts_more_at_once():
    machine = array("0-9", cpus=9, max_concurrent=1)
    machine.update(1, max_concurrent=3)
    assert machine.running() == ["1_0", "1_1", "1_2"]


# ---------------------------------------------------------------- dependencies


def test_depending_on_an_array_means_all_of_its_tasks():
    machine = array("0-1", cpus=3)
    machine.submit(depends_on=[1])
    machine.ends("1_0")
    assert machine.stands(2) == "Queued (Dependency)"
    machine.ends("1_1")
    assert machine.running() == ["2"]


def test_failed_task_cancels_dependents_of_the_array():
    machine = array("0-1", cpus=3)
    machine.submit(depends_on=[1])
    machine.ends("1_0", code=1)
    assert machine.stands(2) == "Queued (Dependency)"
    machine.ends("1_1")
    assert machine.stands(2) == "Cancelled (DependencyFailed:1)"


@pytest.mark.parametrize("task", ["1_0", "1_2"])
def test_a_job_may_wait_for_one_task_started_or_not(task):
    machine = array("0-2", cpus=2)
    machine.submit(depends_on=[task])
    machine.ends("1_0")
    if task == "1_2":
        assert machine.stands(2) == "Queued (Dependency)"
        machine.ends("1_2")
    machine.ends("1_1")
    assert "2" in machine.running()


def test_child_of_unstarted_task_is_cut_off_with_array():
    machine = array("0-2", hold=True)
    machine.submit(depends_on=["1_2"])
    machine.submit(depends_on=["1_1", 1])
    machine.submit(depends_any=["1_1", "1_2"])
    machine.cancel(1)
    assert [machine.stands(number) for number in (2, 3, 4)] == [
        "Cancelled (DependencyFailed:1_2)",
        "Cancelled (DependencyFailed:1)",
        "Cancelled (DependencyFailed:1_2)",
    ]


def test_dependent_of_cancelled_waiting_task_is_cancelled():
    machine = array("0-2", hold=True)
    machine.submit(depends_on=["1_2"])
    machine.cancel("1_2")
    assert machine.stands(2) == "Cancelled (DependencyFailed:1_2)"


def test_end_of_unstarted_task_is_known_afterwards():
    machine = array("0-2", hold=True)
    machine.cancel(1)
    error = machine.refusal(machine.submit, depends_on=["1_2"])
    assert error.message == "job 1_2 ended Cancelled: a job that depends on it would never start"


def test_array_waits_and_is_cut_off_as_a_whole():
    machine = Machine()
    machine.submit()
    machine.submit(array="0-2", depends_on=[1])
    machine.submit(depends_on=["2_1"])
    assert machine.stands(2) == "Queued (Dependency)"
    machine.ends(1, code=1)
    assert machine.stands(2) == "Cancelled (DependencyFailed:1)"
    assert machine.stands(3) == "Cancelled (DependencyFailed:2_1)"


def test_a_task_outside_the_array_is_no_job():
    machine = array("0-3")
    error = machine.refusal(machine.hold, "1_4")
    assert (type(error), error.message) == (NotFound, "there is no active job 1_4")
    machine.cancel("1_4")
    assert machine.did == []


# ---------------------------------------------------------------- while it is being cancelled


def test_dependents_of_a_dying_array_are_cancelled():
    machine = array("0-3")
    machine.submit(depends_on=["1_3"])
    machine.cancel(1)
    machine.ends("1_0", code=0)
    machine.ends("1_1", code=0)
    assert machine.stands(2) == "Cancelled (DependencyFailed:1_3)"


def test_a_task_of_a_dying_array_is_no_unknown_job():
    machine = array("0-3")
    machine.cancel(1)
    error = machine.refusal(machine.submit, depends_on=["1_3"])
    assert isinstance(error, Refused)


def test_task_at_limit_of_cancelled_array_is_not_requeued():
    machine = array("0-1", requeue=True, time_limit_s=60)
    machine.passes(60)
    machine.cancel(1)
    machine.ends("1_0", code=None, signal=15)
    machine.ends("1_1", code=None, signal=15)
    assert machine.running() == []


def test_an_array_that_has_begun_does_not_end_before_its_tasks():
    machine = array("0-3", cpus=3)
    machine.submit(hold=True)
    machine.update(1, depends_on=[2])
    machine.cancel(2)
    for task in ("1_0", "1_1", "1_2"):
        machine.ends(task)
    assert machine[1].is_final


def test_task_of_a_claimed_array_does_not_start_again():
    """A bulk cancel is under way when the attempt of a task ends that never began."""
    machine = Machine(cpus=1, careful=False)  # a restart drops claims
    machine.submit(array="0-0")
    assert machine.running() == ["1_0"]
    machine.state.claimed.add(job_key(1))  # as a bulk cancel does
    machine.ends("1_0", None, problem=LEASED)
    assert machine.running() == []
    machine.hears(Unclaim, keys=(job_key(1),))
    assert machine.running() == ["1_0"]
