"""Requests about jobs: cancel, hold, release, update."""

import pytest

from gflow.errors import Forbidden, NotFound, Refused

from .builders import NOON
from .machine import GIB, Machine, gpu

# ---------------------------------------------------------------- cancel


def test_a_waiting_job_is_cancelled_at_once():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    machine.cancel(2)
    assert machine.did == ["note 2 cancel", "save 2 Cancelled", "note 2 cancelled: CancelledByUser"]
    assert (machine[2].attempt, machine[2].started_at, machine[2].finished_at) == (0, None, NOON)


@pytest.mark.parametrize(
    "asked", [{"hold": True}, {"begin_at": NOON + 5}, {"depends_on": [1]}, {"depends_any": [1]}], ids=str
)
def test_a_job_is_cancelled_wherever_it_waits(asked):
    machine = Machine()
    machine.submit()
    machine.submit(**asked)
    machine.cancel(2)
    assert machine.stands(2) == "Cancelled (CancelledByUser)"
    machine.ends(1)
    machine.passes(60)
    assert machine.did == []


def test_a_running_job_is_stopped_and_cancelled_when_it_is_gone():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    machine.cancel(1)
    assert machine.did == ["save 1 Running/stopping", "note 1 cancel", "stop 1 #1"]
    assert machine.running() == ["1"], "it has its GPU until nothing of it lives"
    machine.cancel(1)
    assert machine.did == [], "once is enough"
    machine.cancel(1, now=True)
    assert machine.did[-2:] == ["note 1 cancel: at once", "stop 1 #1 now"]
    machine.ends(1, code=0)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"
    assert machine.running() == ["2"]


def test_a_final_job_is_left_alone():
    machine = Machine()
    machine.submit()
    machine.ends(1)
    machine.cancel(1, 7)
    assert machine.did == []


def test_a_cancel_takes_all_or_none():
    machine = Machine()
    machine.submit()
    machine.submit(user="bob")
    error = machine.refusal(machine.cancel, 1, 2)
    assert (type(error), error.message) == (Forbidden, "job 2 belongs to bob")
    machine.cancel(1, 2, user="root")
    assert machine.did[-1] == "stop 2 #1"


def test_operator_may_change_jobs_of_all_users():
    machine = Machine()
    machine.submit(user="bob", hold=True)
    machine.submit(user="bob")
    assert type(machine.refusal(machine.hold, 1)) is Forbidden
    machine.hold(1, is_operator=True)
    machine.cancel(2, is_operator=True)
    assert machine.did[-1] == "stop 2 #1"


def test_reason_names_the_user_who_cancelled_the_job_of_another():
    machine = Machine(gpu(0))
    machine.submit(user="bob", gpus=1)
    machine.submit(user="bob", gpus=1)
    machine.submit(user="bob", array="0-3", gpus=1)
    machine.cancel(1, 2, 3, user="root")
    assert str(machine[1].reason) == "CancelledByUser: root", "also while it is being stopped"
    machine.ends(1, None, signal=15)
    assert {machine.stands(job) for job in (1, 2, 3)} == {"Cancelled (CancelledByUser: root)"}
    machine.submit(user="bob")
    machine.cancel(4, user="bob")
    machine.ends(4)
    assert machine.stands(4) == "Cancelled (CancelledByUser)"


def test_operator_may_not_change_the_command():
    """The command runs as the owner: a user who could change it could act as the owner."""
    machine = Machine()
    machine.submit(user="bob", hold=True)
    machine.update(1, is_operator=True, priority=50, time_limit_s=60, memory_mib=10)
    for name, value in {
        "command": ("id",), "environ": "x", "cwd": "/", "output": "/home/bob/.profile", "error": "x",
        "venv": "/v", "conda_env": "/c", "parameters": (("a", "b"),), "umask": 0, "script": "x",
        "script_path": "x", "template": ("x",), "name": "x", "notify_emails": ("x",), "depends_on": (),
    }.items():  # fmt: skip
        error = machine.refusal(machine.update, 1, is_operator=True, **{name: value})
        assert (type(error), error.message.split(",")[0]) == (Forbidden, "job 1 belongs to bob")
    machine.update(1, user="bob", command=("id",))
    machine.update(1, user="root", command=("id",))


def test_cancelling_a_parent_and_its_child_together():
    machine = Machine()
    machine.submit(hold=True)
    machine.submit(depends_on=[1])
    machine.cancel(1, 2)
    assert machine.stands(2) == "Cancelled (DependencyFailed:1)"


@pytest.mark.parametrize("now", [False, True])
def test_a_job_cancelled_in_its_grace_time_is_not_requeued(now):
    machine = Machine()
    machine.submit(time_limit_s=60, requeue=True)
    machine.passes(60)
    machine.cancel(1, now=now)
    machine.ends(1, code=None, signal=15)
    assert machine[1].is_final


# ---------------------------------------------------------------- hold and release


def test_a_held_job_waits_until_it_is_released():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    machine.hold(2)
    assert machine.did == ["save 2 Hold", "note 2 held"]
    assert machine.stands(2) == "Hold (JobHeldUser)"
    machine.ends(1)
    assert machine.running() == []
    machine.release(2)
    assert machine.did == [
        "save 2 Running",
        "note 2 released",
        "save 2 Running",
        "note 2 started: attempt 1 on GPU 0",
        "start 2 #1",
    ]


def test_a_job_may_be_submitted_held():
    machine = Machine()
    machine.submit(hold=True)
    assert machine.did == ["save 1 Hold", "note 1 submitted", "accepted 1"]
    machine.release(1)
    assert machine.running() == ["1"]


def test_hold_and_release_twice_say_nothing_the_second_time():
    machine = Machine(gpu(0))
    machine.submit(gpus=1, hold=True)
    machine.submit(gpus=1)
    machine.hold(1)
    assert machine.did == []
    machine.release(1)
    machine.release(1)
    assert machine.did == []


def test_a_held_job_goes_on_waiting_for_its_parents():
    machine = Machine()
    machine.submit()
    machine.submit(depends_on=[1])
    machine.hold(2)
    machine.release(2)
    assert machine.stands(2) == "Queued (Dependency)"
    machine.hold(2)
    machine.ends(1)
    assert machine.stands(2) == "Hold (JobHeldUser)"
    machine.release(2)
    assert machine.running() == ["2"]


def test_a_held_job_does_not_start_at_its_begin_time():
    machine = Machine()
    machine.submit(begin_at=NOON + 60)
    machine.hold(1)
    assert machine.state.deadlines.next_begin() is None
    machine.passes(60)
    assert machine.did == []
    machine.release(1)
    assert machine.running() == ["1"]


@pytest.mark.parametrize("asked", [{"hold": True}, {"begin_at": NOON + 5}, {"memory_mib": 64 * GIB}], ids=str)
def test_a_release_may_say_when(asked):
    machine = Machine()
    machine.submit(memory_mib=1)
    machine.submit(**asked)
    machine.release(2, begin_at=NOON + 60)
    assert machine.did == ["save 2 Queued", "note 2 released"]
    machine.ends(1)
    machine.passes(59)
    assert machine.stands(2) == "Queued (BeginTime)"
    machine.passes(1)
    assert machine.running() == ["2"]


@pytest.mark.parametrize(("verb", "rest"), [("hold", "waiting job can be held"), ("release", "held job can")])
def test_a_running_job_is_neither_held_nor_released(verb, rest):
    machine = Machine(cpus=1)
    machine.submit()
    machine.submit()
    error = machine.refusal(getattr(machine, verb), 2, 1)
    assert isinstance(error, Refused)
    assert error.message.startswith("job 1 is running, and only a " + rest)


@pytest.mark.parametrize("verb", ["hold", "release", "update"])
def test_only_own_active_jobs_can_be_changed(verb):
    machine = Machine()
    machine.submit(hold=True)
    machine.submit()
    machine.ends(2)
    change = getattr(machine, verb)
    assert machine.refusal(change, 1, user="bob").message == "job 1 belongs to ann"
    for gone in (2, 7):
        error = machine.refusal(change, 1, gone)
        assert (type(error), error.message) == (NotFound, f"there is no active job {gone}")
    change(1, user="root")


# ---------------------------------------------------------------- update


def test_a_waiting_job_may_ask_for_less_and_starts():
    machine = Machine(gpu(0), gpu(1))
    machine.submit(gpus=1)
    machine.submit(gpus=2)
    machine.update(2, gpus=1, priority=7)
    assert machine.did == [
        "save 2 Running",
        "note 2 updated: gpus = 1, priority = 7",
        "save 2 Running",
        "note 2 started: attempt 1 on GPU 1",
        "start 2 #1",
    ]


def test_a_new_priority_changes_the_order():
    machine = Machine(gpu(0))
    machine.submit(gpus=1, count=3)
    machine.update(3, priority=99)
    machine.ends(1)
    assert machine.running() == ["3"]


def test_begin_time_update_moves_job_in_and_out_of_queue():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    machine.update(2, begin_at=NOON + 60)
    machine.ends(1)
    assert machine.stands(2) == "Queued (BeginTime)"
    machine.update(2, begin_at=NOON)
    assert machine.running() == ["2"]


def test_a_held_job_is_updated_and_stays_held():
    machine = Machine()
    machine.submit(hold=True)
    machine.update(1, cpus=2)
    assert machine.stands(1) == "Hold (JobHeldUser)"


def test_the_time_limit_of_a_running_job_moves():
    machine = Machine()
    machine.submit(time_limit_s=60)
    machine.update(1, time_limit_s=120)
    assert machine.did == ["save 1 Running", "note 1 updated: time limit = 120 s"]
    assert machine.state.deadlines.next_limit() == 1120.0
    machine.passes(60)
    assert machine.did == []
    machine.update(1, time_limit_s=90)
    machine.passes(30)
    assert machine.did == ["save 1 Running/stopping", "note 1 time limit: after 90 s", "stop 1 #1"]


def test_running_job_accepts_first_limit_in_the_past():
    machine = Machine()
    machine.submit()
    machine.passes(100)
    machine.update(1, time_limit_s=60)
    machine.passes(0)
    assert machine.did[-1] == "stop 1 #1"


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"gpus": 2}, "gpus"),
        ({"memory_mib": 1}, "memory"),
        ({"begin_at": NOON}, "begin"),
        ({"depends_on": [2]}, "depends on"),
        ({"name": "x"}, "name"),
    ],
    ids=str,
)
def test_resources_of_a_running_job_cannot_change(fields, called):
    machine = Machine(gpu(0), gpu(1))
    machine.submit(gpus=1, count=2)
    error = machine.refusal(machine.update, 1, **fields)
    assert error.message == f"job 1 is running, and {called} cannot change any more"


def test_an_update_changes_all_or_none():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    machine.refusal(machine.update, 2, 1, gpus=0)


def test_unsatisfiable_update_is_refused_unless_allowed():
    machine = Machine(gpu(0))
    machine.submit(hold=True)
    assert "this machine has 1" in machine.refusal(machine.update, 1, gpus=2).message
    machine.update(1, gpus=2, allow_unsatisfiable=True)
    assert machine[1].spec.gpus == 2


def test_more_retries_while_it_runs():
    machine = Machine()
    machine.submit()
    machine.update(1, max_retries=1)
    machine.ends(1, code=1)
    assert machine.running() == ["1"]


def test_new_parents_replace_the_old_ones():
    machine = Machine()
    machine.submit(count=2)
    machine.submit(depends_on=[1])
    machine.update(3, depends_on=[2])
    assert [*machine.state.dependencies.children] == [*machine[3].spec.parents]
    machine.ends(1, code=1)
    machine.ends(2)
    assert machine.running() == ["3"]


def test_a_job_that_waits_in_vain_is_freed_by_another_parent():
    machine = Machine()
    machine.submit(count=2)
    machine.submit(depends_on=[1], no_auto_cancel=True)
    machine.ends(1, code=1)
    machine.update(3, depends_on=[2])
    machine.ends(2)
    assert machine.running() == ["3"]


def test_update_of_stuck_child_to_auto_cancel_is_refused():
    machine = Machine()
    machine.submit()
    machine.submit(depends_on=[1], no_auto_cancel=True)
    machine.ends(1, code=1)
    assert "ended Failed" in machine.refusal(machine.update, 2, no_auto_cancel=False).message


@pytest.mark.parametrize(
    ("job", "parent"), [(1, 1), (1, 2), (1, 3), (1, 4), (3, 4), (1, "4_1"), (4, "4_1")], ids=str
)
@pytest.mark.parametrize("how", ["depends_on", "depends_any"])
def test_a_cycle_is_refused(how, job, parent):
    machine = Machine()
    machine.submit(hold=True)
    machine.submit(depends_on=[1])
    machine.submit(depends_any=[2])
    machine.submit(array="0-3", depends_on=[3])
    error = machine.refusal(machine.update, job, **{how: [parent]})
    assert (type(error), error.message) == (Refused, f"job {job} would wait for itself")


def test_a_diamond_is_no_cycle():
    machine = Machine()
    machine.submit(hold=True, count=2)
    machine.submit(depends_on=[1, 2])
    machine.update(2, depends_on=[1])
    assert machine.stands(2) == "Hold (JobHeldUser)"


def test_a_queued_retry_does_not_wait_for_its_own_array():
    machine = Machine(cpus=2)
    machine.submit(array="0-1", max_retries=1, max_concurrent=2)
    machine.submit(priority=99)
    machine.ends("1_0", code=1)
    assert machine.stands("1_0") == "Queued (Resources)"
    machine.refusal(machine.update, "1_0", depends_on=[1])


def test_a_cap_on_a_single_job_counts_that_job_alone():
    machine = Machine()
    machine.submit(count=2)
    machine.submit(hold=True)
    machine.update(3, max_concurrent=1)
    machine.release(3)
    assert machine.running() == ["1", "2", "3"]


def test_jobs_that_get_a_cap_together_are_one_group():
    machine = Machine()
    machine.submit(count=2)
    machine.submit(hold=True, count=2)
    machine.update(3, 4, max_concurrent=1)
    machine.release(3, 4)
    assert machine.running() == ["1", "2", "3"]
    assert machine.stands(4) == "Queued (JobArrayTaskLimit)"


def test_a_lost_gpu_does_not_freeze_the_limit_of_a_job_that_runs():
    machine = Machine(gpu(0), gpu(1))
    machine.submit(gpus=2, time_limit_s=60)
    machine.see(gpu(0))
    machine.update(1, time_limit_s=600)
    assert machine.state.deadlines.next_limit() == 1600.0
