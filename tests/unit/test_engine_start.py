"""Jobs come in and start: who, where, and in which order."""

import pytest

from gflow.core.forecast.explain import explain
from gflow.core.model import Moment
from gflow.core.policy import Policy
from gflow.errors import NotFound, Refused
from gflow.wire.shell_words import spell_hint

from .builders import NOON
from .machine import GIB, Machine, gpu


def two_gpus(**more):
    return Machine(gpu(0), gpu(1), **more)


# ---------------------------------------------------------------- submit


def test_a_job_that_fits_starts_in_the_step_that_takes_it():
    machine = two_gpus()
    machine.submit(gpus=2)
    assert machine.did == [
        "save 1 Running",
        "note 1 submitted",
        "accepted 1",
        "save 1 Running",
        "note 1 started: attempt 1 on GPU 0,1",
        "start 1 #1",
    ]
    job = machine[1]
    assert (job.attempt, job.gpu_ids, job.started_at, job.started_boot) == (1, (0, 1), NOON, 1000.0)


def test_a_job_without_gpus_says_none():
    machine = Machine()
    machine.submit()
    assert machine.did[-2:] == ["note 1 started: attempt 1", "start 1 #1"]


def test_a_job_that_does_not_fit_is_only_taken():
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.submit(gpus=1)
    assert machine.did == ["save 2 Queued", "note 2 submitted", "accepted 2"]


def test_jobs_submitted_together_are_accepted_first():
    machine = Machine(gpu(0))
    machine.submit(gpus=1, count=3)
    assert machine.did[-4:] == [
        "accepted 1 2 3",
        "save 1 Running",
        "note 1 started: attempt 1 on GPU 0",
        "start 1 #1",
    ]


def test_job_numbers_count_up_over_all_users():
    machine = Machine()
    assert [machine.submit(), machine.submit(user="bob"), machine.submit(count=2), machine.submit()] == [
        1,
        2,
        3,
        5,
    ]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"gpus": 3}, "the job asks for 3 GPUs, and this machine has 2"),
        ({"cpus": 5}, "the job asks for 5 CPUs, and this machine has 4"),
        ({"memory_mib": 65 * GIB}, "the job asks for 65 GiB of memory, and this machine has 64 GiB"),
        ({"gpus": 1, "gpu_type": "H100"}, "the job asks for 1 GPU of type 'H100', and this machine has none"),
    ],
    ids=str,
)
def test_impossible_job_is_refused_unless_allowed(asked, sentence):
    machine = two_gpus()
    error = machine.refusal(machine.submit, **asked)
    assert (type(error), error.message) == (Refused, sentence)
    assert "--allow-unsatisfiable" in spell_hint(error)
    machine.submit(allow_unsatisfiable=True, **asked)
    assert machine.stands(1) == f"Queued (Resources: {sentence})"


def test_one_bad_job_refuses_the_whole_submission():
    machine = two_gpus()
    error = machine.refusal(machine.submit_specs, {}, {"gpus": 3}, {})
    assert "3 GPUs" in error.message
    assert machine.submit() == 1


def test_unsatisfiable_job_is_refused_beside_allowed_one():
    machine = two_gpus()
    machine.refusal(machine.submit_specs, {"gpus": 3, "allow_unsatisfiable": True}, {"gpus": 3})


# ---------------------------------------------------------------- order


def test_the_higher_priority_starts_first_then_the_older():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1, priority=5)
    machine.submit(gpus=1, priority=20)
    machine.submit(gpus=1, priority=20)
    order = []
    while machine.running():
        order += machine.running()
        machine.ends(machine.running()[0])
    assert order == ["1", "3", "4", "2"]


def test_among_newcomers_the_priority_counts_too():
    machine = Machine(gpu(0))
    machine.submit_specs({"gpus": 1}, {"gpus": 1, "priority": 99})
    assert machine.running() == ["2"]


def test_next_task_of_array_starts_before_lower_priority():
    """The running job is at its limit, so that the reservation of the next task leaves a CPU slot spare."""
    machine = Machine(gpu(0), cpus=3)
    machine.submit(time_limit_s=600)
    machine.now = Moment(machine.now.wall + 600, machine.now.boot + 600)
    machine.submit_specs({"array": "0-1", "priority": 50}, {"priority": 10})
    assert machine.running() == ["1", "2_0", "2_1"]


def test_a_small_job_starts_beside_a_large_one_that_waits():
    machine = two_gpus()
    machine.submit(gpus=1)
    machine.submit(gpus=2)
    machine.submit(gpus=1)
    assert machine.running() == ["1", "3"]


def test_host_memory_and_cpus_are_booked():
    machine = Machine(cpus=3, memory_mib=10 * GIB)
    machine.submit(memory_mib=6 * GIB)
    machine.submit(memory_mib=6 * GIB)
    machine.submit(cpus=2)
    machine.submit()
    assert machine.running() == ["1", "3"]
    machine.ends(1)
    assert machine.running() == ["2", "3"]


def test_a_job_with_gpus_takes_no_cpu_slot_unless_it_asks():
    machine = two_gpus(cpus=1)
    machine.submit(gpus=1)
    machine.submit()
    machine.submit(gpus=1, cpus=1)
    assert machine.running() == ["1", "2"]


def test_a_group_runs_no_more_at_once_than_its_cap():
    machine = Machine()
    machine.submit(count=4, group=1, max_concurrent=2)
    assert machine.running() == ["1", "2"]
    machine.ends(1)
    assert machine.running() == ["2", "3"]
    machine.submit()
    assert machine.running() == ["2", "3", "5"], "others do not wait behind the cap"


def reserved(machine):
    return [machine.state.jobs[one.key].label for one in machine.state.start_reservations.entries]


def test_job_that_reaches_the_cap_of_its_group_loses_its_reservation():
    """Another job of the group is backfilled. Two jobs at most have a reservation because they are due."""
    machine = Machine(cpus=4)
    machine.state.policy = Policy(patience=0)
    machine.submit(cpus=3, time_limit_s=10_000)
    machine.submit(cpus=4, priority=20, group=1, max_concurrent=1)
    machine.submit(cpus=4, priority=20)
    machine.submit(cpus=4)
    machine.submit(cpus=4, priority=5)
    machine.see()  # a round over the whole queue
    assert reserved(machine) == ["2", "3", "4"]
    machine.submit(cpus=1, time_limit_s=60, group=1, max_concurrent=1)
    assert machine.running() == ["1", "6"]
    assert reserved(machine) == ["3", "4"]


# ---------------------------------------------------------------- begin times


def test_a_job_starts_at_its_begin_time():
    machine = Machine()
    machine.submit(begin_at=NOON + 60)
    assert machine.stands(1) == "Queued (BeginTime)"
    assert machine.state.deadlines.next_begin() == NOON + 60
    machine.passes(59)
    assert machine.did == []
    machine.passes(1)
    assert machine.did == ["save 1 Running"] * 2 + ["note 1 started: attempt 1", "start 1 #1"]
    assert machine.state.deadlines.next_begin() is None


def test_a_begin_time_in_the_past_is_now():
    machine = Machine()
    machine.submit(begin_at=NOON - 60)
    assert machine.running() == ["1"]


def test_jobs_that_are_due_together_start_by_priority():
    machine = Machine(gpu(0))
    machine.submit(gpus=1, begin_at=NOON + 5)
    machine.submit(gpus=1, begin_at=NOON + 10, priority=99)
    machine.passes(20)
    assert machine.running() == ["2"]


def test_job_waits_again_when_clock_is_set_back():
    machine = Machine(gpu(0))
    machine.submit(gpus=1)
    machine.submit(gpus=1, begin_at=NOON + 60)
    machine.passes(60)
    assert machine.stands(2) == "Queued (Resources)"
    machine.now = Moment(NOON, machine.now.boot)
    machine.ends(1)
    assert machine.stands(2) == "Queued (BeginTime)"
    machine.passes(60)
    assert machine.running() == ["2"]


def test_job_that_waits_for_its_begin_time_again_loses_its_reservation():
    machine = Machine(cpus=4)
    machine.state.policy = Policy(patience=0)
    machine.submit(cpus=3, time_limit_s=10_000)
    machine.submit(cpus=4, begin_at=NOON + 60)
    machine.passes(60)
    machine.submit(cpus=4, time_limit_s=600)
    machine.see()  # a round over the whole queue
    assert set(reserved(machine)) == {"2", "3"}
    machine.now = Moment(NOON, machine.now.boot + 1)
    machine.passes(0)
    assert reserved(machine) == ["3"]


# ---------------------------------------------------------------- GPUs come and go


def test_gpus_that_appear_are_used():
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.submit(gpus=2)
    machine.see(gpu(0), gpu(1), gpu(2), gpu(3))
    assert machine[2].gpu_ids == (2, 3)


def test_vanished_gpu_is_not_assigned_its_job_continues():
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.see(gpu(0))
    assert machine.running() == ["1"]
    machine.submit(gpus=1)
    machine.ends(1)
    assert machine[2].gpu_ids == (0,)


def test_restricted_gpus_delay_new_jobs_only():
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.restrict(1)
    assert machine.did == ["keep allowed_gpus = 1"]
    assert machine.running() == ["1"]
    machine.submit(gpus=2)
    machine.submit(gpus=1)
    machine.ends(1)
    assert machine[3].gpu_ids == (1,)
    assert machine.stands(2) == "Queued (Resources)"
    machine.ends(3)
    assert machine.stands(2) == "Queued (Resources: Need 2 GPUs, only 1 available)"
    machine.restrict(None)
    assert machine.did == [
        "keep allowed_gpus = all",
        "save 2 Running",
        "note 2 started: attempt 1 on GPU 0,1",
        "start 2 #1",
    ]


def test_no_gpu_at_all_may_be_allowed():
    machine = two_gpus()
    machine.restrict()
    assert machine.did == ["keep allowed_gpus = "]
    machine.submit(gpus=1)
    assert machine.stands(1) == "Queued (Resources)"


def test_a_restriction_to_gpus_that_are_not_there_is_refused():
    machine = two_gpus()
    assert machine.refusal(machine.restrict, 0, 7).message == "there is no GPU 7 here"


# ---------------------------------------------------------------- parents


def test_a_parent_that_never_was_is_not_found():
    machine = Machine()
    error = machine.refusal(machine.submit, depends_on=[7])
    assert (type(error), error.message) == (NotFound, "there is no job 7 to depend on")
    machine.submit(array="1-3")
    assert machine.refusal(machine.submit, depends_on=["1_4"]).message == "there is no job 1_4 to depend on"


def test_a_parent_that_succeeded_is_no_reason_to_wait():
    machine = Machine()
    machine.submit()
    machine.ends(1)
    machine.submit(depends_on=[1])
    assert machine.running() == ["2"]


def test_child_of_failed_parent_is_refused_unless_it_may_wait():
    machine = Machine()
    machine.submit()
    machine.ends(1, code=1)
    error = machine.refusal(machine.submit, depends_on=[1])
    assert error.message == "job 1 ended Failed: a job that depends on it would never start"
    assert "--depends-on-end starts it after any end; gjob redo 1 --cascade" in spell_hint(error)
    machine.submit(depends_on=[1], no_auto_cancel=True)
    assert machine.stands(2) == "Queued (Dependency: job 1 did not succeed)"


def test_running_jobs_of_one_user_are_limited():
    machine = Machine(cpus=4)
    machine.state.policy = Policy(most_running=2)
    for _ in range(3):
        machine.submit(cpus=0)
    machine.submit(user="bob", cpus=0)
    assert machine.running() == ["1", "2", "4"]
    assert str(explain(machine.state, machine[3], machine.now)) == "Quota: ann runs 2 of 2 jobs"
    machine.ends(1)
    assert machine.running() == ["2", "3", "4"]
