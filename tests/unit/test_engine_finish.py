"""Jobs end: verdicts, further attempts, and those that waited for them."""

import pytest

from gflow.core.lifecycle.finish import QUICK_ENDS, QUICK_S
from gflow.core.model import Moment

from .builders import NOON
from .machine import Machine, gpu

# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("how", "stands"),
    [
        ({"code": 0}, "Finished"),
        ({"code": 3}, "Failed (ExitCode:3)"),
        ({"code": 75}, "Failed (ExitCode:75)"),
        ({"code": None, "signal": 9}, "Failed (Signal:9)"),
        ({"code": None, "problem": "Lost"}, "Failed (Lost)"),
        ({"code": None, "problem": "Reboot"}, "Failed (Reboot)"),
        ({"code": None, "signal": 9, "problem": "OutOfMemory"}, "Failed (OutOfMemory)"),
    ],
    ids=str,
)
def test_state_and_reason_of_an_ended_job(how, stands):
    machine = Machine()
    machine.submit()
    machine.ends(1, **how)
    assert machine.stands(1) == stands
    job = machine[1]
    assert (job.exit_code, job.signal, job.finished_at) == (how["code"], how.get("signal"), NOON)


@pytest.mark.parametrize(
    ("how", "reason"), [({"code": 130}, "ExitCode:130"), ({"code": None, "signal": 2}, "Signal:2")], ids=str
)
def test_ctrl_c_in_a_terminal_is_not_a_failure(how, reason):
    machine = Machine()
    machine.submit(pty=True, max_retries=1)
    machine.ends(1, **how)
    assert machine.stands(1) == f"Cancelled ({reason})"
    machine.submit()
    machine.ends(2, **how)
    assert machine.stands(2) == f"Failed ({reason})"


def test_attempts_sum_cpu_time_and_keep_memory_peak():
    machine = Machine()
    machine.submit(max_retries=2)
    machine.ends(1, code=1, cpu_ms=100, peak_kib=7000)
    machine.ends(1, code=1, cpu_ms=20, peak_kib=9000)
    assert (machine[1].state.value, machine[1].cpu_ms, machine[1].peak_kib) == ("Running", 120, 9000)
    machine.ends(1, attempt=2, cpu_ms=999, peak_kib=99999)
    machine.ends(1, cpu_ms=3, peak_kib=8000)
    assert (machine.stands(1), machine[1].cpu_ms, machine[1].peak_kib) == ("Finished", 123, 9000)


def test_an_end_and_the_next_start_are_one_step():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    machine.ends(1, code=2)
    assert machine.did == [
        "save 1 Failed",
        "note 1 failed: ExitCode:2",
        "forget 1 #1",
        "save 2 Running",
        "note 2 started: attempt 1 on GPU 0",
        "start 2 #1",
    ]


@pytest.mark.parametrize("job", ["1", "7"])
def test_repeated_exit_is_only_forgotten(job):
    machine = Machine()
    machine.submit()
    machine.ends(1)
    machine.ends(job, attempt=1)
    assert machine.did == [f"forget {job} #1"]


def test_exit_of_earlier_attempt_is_ignored():
    machine = Machine()
    machine.submit(max_retries=1)
    machine.ends(1, code=1)
    assert machine[1].attempt == 2
    machine.ends(1, attempt=1)
    assert (machine.did, machine.running()) == (["forget 1 #1"], ["1"])


# ---------------------------------------------------------------- time limits


def test_job_at_time_limit_is_stopped_then_timeout():
    machine = Machine()
    machine.submit(time_limit_s=60)
    machine.passes(59)
    assert machine.did == []
    machine.passes(1)
    assert machine.did == ["save 1 Running/stopping", "note 1 time limit: after 60 s", "stop 1 #1"]
    machine.passes(60)
    assert machine.did == [], "once"
    machine.ends(1, code=0)
    assert machine.stands(1) == "Timeout (TimeLimit)"


def test_each_attempt_has_its_own_time():
    machine = Machine()
    machine.submit(time_limit_s=60, max_retries=1)
    machine.passes(50)
    machine.ends(1, code=1)
    machine.passes(50)
    assert machine.did == []
    machine.passes(10)
    assert machine.did[-1] == "stop 1 #2"


# ---------------------------------------------------------------- retries


def test_a_failed_job_is_tried_again_as_its_next_attempt():
    machine = Machine()
    machine.submit(max_retries=1)
    machine.ends(1, code=2)
    assert machine.did == [
        "save 1 Running",
        "note 1 retry: after attempt 1: ExitCode:2",
        "ran 1 #1",
        "forget 1 #1",
        "save 1 Running",
        "note 1 started: attempt 2",
        "start 1 #2",
    ]
    assert (machine[1].retries, machine[1].exit_code) == (1, None)
    machine.ends(1, code=2)
    assert (machine.stands(1), machine[1].exit_code) == ("Failed (ExitCode:2)", 2)


@pytest.mark.parametrize(
    ("how", "again"),
    [
        ({"code": 1}, True),
        ({"code": 75}, True),
        ({"code": None, "signal": 9}, True),
        ({"code": None, "problem": "Lost"}, True),
        ({"code": 0}, False),
    ],
    ids=str,
)
def test_retry_by_kind_of_end(how, again):
    machine = Machine()
    machine.submit(max_retries=5)
    machine.ends(1, **how)
    assert machine.running() == (["1"] if again else [])


def test_neither_a_cancel_nor_a_limit_is_retried():
    machine = Machine()
    machine.submit(max_retries=5)
    machine.submit(max_retries=5, time_limit_s=10)
    machine.cancel(1)
    machine.passes(10)
    machine.ends(1, code=None, signal=15)
    machine.ends(2, code=None, signal=15)
    assert (machine.stands(1), machine.stands(2)) == ("Cancelled (CancelledByUser)", "Timeout (TimeLimit)")


def test_a_retry_waits_its_turn_like_any_job_and_keeps_nothing():
    machine = Machine(gpu(0))
    machine.submit(gpus=1, max_retries=1)
    machine.submit(gpus=1, priority=99)
    machine.ends(1, code=1)
    assert machine.running() == ["2"]
    job = machine[1]
    assert (job.state.value, str(job.reason), job.gpu_ids, job.started_at) == ("Queued", "Retry", (), None)
    machine.ends(2)
    assert machine.running() == ["1"]


# ---------------------------------------------------------------- requeue


@pytest.mark.parametrize(
    ("how", "again"),
    [
        ({"code": 75}, True),
        ({"code": None, "problem": "Lost"}, True),
        ({"code": None, "problem": "Reboot"}, True),
        ({"code": 1}, False),
        ({"code": 0}, False),
        ({"code": None, "signal": 9}, False),
        ({"code": None, "problem": "OutOfMemory"}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("requeue", [True, False])
def test_requeue_by_kind_of_end(requeue, how, again):
    machine = Machine()
    machine.submit(requeue=requeue)
    machine.ends(1, **how)
    assert machine.running() == (["1"] if again and requeue else [])


def test_a_job_whose_time_is_up_is_requeued():
    machine = Machine()
    machine.submit(requeue=True, time_limit_s=100)
    machine.passes(100)
    machine.ends(1, code=None, signal=15)
    assert machine.did[1] == "note 1 requeued: after attempt 1: TimeLimit"
    assert machine.did[-1] == "start 1 #2"
    assert machine[1].stopping is None


def test_requeues_are_no_retries():
    machine = Machine()
    machine.submit(requeue=True, max_retries=1)
    machine.ends(1, code=75)
    machine.ends(1, code=1)
    assert (machine[1].attempt, machine[1].retries) == (3, 1)
    machine.ends(1, code=1)
    assert machine.stands(1) == "Failed (ExitCode:1)"


def spin(machine, times, seconds=QUICK_S - 1):
    for _ in range(times):
        machine.passes(seconds)
        machine.ends(1, code=75)


def test_five_quick_requeues_hold_the_job():
    machine = Machine()
    machine.submit(requeue=True)
    spin(machine, QUICK_ENDS - 1)
    assert machine.running() == ["1"]
    spin(machine, 1)
    assert QUICK_ENDS == 5
    assert machine.stands(1) == "Hold (RequeueLoop)"
    assert machine.did == [
        "save 1 Hold",
        "note 1 requeued: after attempt 5: ExitCode:75",
        "ran 1 #5",
        "forget 1 #5",
    ]
    machine.release(1)
    spin(machine, QUICK_ENDS - 1)
    assert machine.running() == ["1"], "released, it has five again"


def test_long_attempt_resets_the_requeue_loop():
    machine = Machine()
    machine.submit(requeue=True)
    spin(machine, 4)
    spin(machine, 1, seconds=QUICK_S)
    spin(machine, 4)
    assert (machine.running(), machine[1].attempt) == (["1"], 10)


def test_a_reboot_ends_an_attempt_that_ran_until_then():
    machine = Machine()
    machine.submit(requeue=True)
    for _ in range(QUICK_ENDS):
        machine.now = Moment(machine.now.wall + 3600, machine.now.boot + 3600)
        machine.ends(1, code=None, problem="Reboot")
    assert machine.running() == ["1"]


# ---------------------------------------------------------------- children


def family(*children, **machine):
    """Job 1 runs, the others wait for it or for each other."""
    made = Machine(**machine)
    made.submit()
    for asked in children:
        made.submit(**asked)
    return made


def test_child_starts_in_step_of_last_parents_success():
    machine = family({}, {"depends_on": [1, 2]})
    assert machine.stands(3) == "Queued (Dependency)"
    machine.ends(1)
    assert machine.running() == ["2"]
    machine.ends(2)
    assert machine.did == [
        "save 2 Finished",
        "note 2 finished",
        "save 3 Running",  # that it became ready
        "forget 2 #1",
        "save 3 Running",
        "note 3 started: attempt 1",
        "start 3 #1",
    ]


def test_children_of_failed_job_are_cancelled_naming_parent():
    machine = family({"depends_on": [1]}, {"depends_on": [2]}, {"depends_on": [3]})
    machine.ends(1, code=1)
    assert [machine.stands(number) for number in (1, 2, 3, 4)] == [
        "Failed (ExitCode:1)",
        "Cancelled (DependencyFailed:1)",
        "Cancelled (DependencyFailed:2)",
        "Cancelled (DependencyFailed:3)",
    ]
    assert machine.did == [
        "save 1 Failed",
        "note 1 failed: ExitCode:1",
        "save 2 Cancelled",
        "note 2 cancelled: DependencyFailed:1",
        "save 3 Cancelled",
        "note 3 cancelled: DependencyFailed:2",
        "save 4 Cancelled",
        "note 4 cancelled: DependencyFailed:3",
        "forget 1 #1",
    ]


def test_a_long_chain_falls_without_a_deep_stack():
    machine = Machine(careful=False)
    machine.submit()
    for number in range(1, 2000):
        machine.submit(depends_on=[number])
    machine.ends(1, code=1)
    assert not machine.state.jobs


def test_a_held_child_falls_too():
    machine = family({"depends_on": [1], "hold": True})
    machine.ends(1, code=1)
    assert machine.stands(2) == "Cancelled (DependencyFailed:1)"


def test_child_of_parent_and_grandparent_is_cancelled_once():
    machine = family({"depends_on": [1]}, {"depends_on": [1, 2]})
    machine.ends(1, code=1)
    assert machine.did.count("save 3 Cancelled") == 1
    assert machine.stands(3) == "Cancelled (DependencyFailed:1)"


def test_a_retried_parent_has_not_ended():
    machine = Machine()
    machine.submit(max_retries=1)
    machine.submit(depends_on=[1])
    machine.ends(1, code=1)
    assert machine.stands(2) == "Queued (Dependency)"
    machine.ends(1)
    assert machine.running() == ["2"]


def test_a_child_that_may_wait_waits_and_says_for_whom():
    machine = family({"depends_on": [1], "no_auto_cancel": True}, {"depends_on": [2]})
    machine.ends(1, code=1)
    assert machine.stands(2) == "Queued (Dependency: job 1 did not succeed)"
    assert machine.stands(3) == "Queued (Dependency)"


def test_one_success_of_any_is_enough():
    machine = family({}, {"depends_any": [1, 2]}, {"depends_on": [3]})
    machine.ends(1, code=1)
    assert machine.stands(3) == "Queued (Dependency)"
    machine.ends(2)
    assert machine.running() == ["3"]


def test_after_one_success_the_other_parents_do_not_matter():
    machine = family({}, {"depends_any": [1, 2]}, cpus=2)
    machine.ends(1)
    machine.ends(2, code=1)
    assert machine.running() == ["3"]


def test_when_none_of_any_succeeded_the_last_one_is_named():
    machine = family({}, {"depends_any": [1, 2]})
    machine.ends(2, code=1)
    machine.ends(1, code=1)
    assert machine.stands(3) == "Cancelled (DependencyFailed:1)"


def test_depends_on_all_and_any_together():
    machine = family({}, {}, {"depends_on": [1], "depends_any": [2, 3]})
    machine.ends(2, code=1)
    machine.ends(1)
    assert machine.stands(4) == "Queued (Dependency)"
    machine.ends(3)
    assert machine.running() == ["4"]


def test_a_child_whose_parents_are_done_still_waits_for_its_time():
    machine = family({"depends_on": [1], "begin_at": NOON + 100})
    machine.ends(1)
    assert machine.stands(2) == "Queued (BeginTime)"
    machine.passes(100)
    assert machine.running() == ["2"]
