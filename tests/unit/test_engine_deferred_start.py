"""Starts that fail because the daemon is short of something: the job waits on, and is tried again."""

from .machine import Machine

SHORT = "Deferred: Too many open files"
QUEUED = "Queued (Resources: nothing can be started now: Too many open files)"


def test_deferred_start_leaves_job_queued_uncounted():
    machine = Machine()
    machine.submit(max_retries=0)
    machine.ends(1, None, problem=SHORT)
    assert machine.stands(1) == QUEUED
    assert machine[1].retries == 0
    assert not machine.state.running


def test_nothing_starts_until_the_pause_is_over():
    machine = Machine()
    machine.submit()
    machine.ends(1, None, problem=SHORT)
    machine.submit()
    assert machine.stands(2) == QUEUED
    machine.passes(0.5)
    assert machine.stands(1) == QUEUED
    machine.passes(0.6)
    assert (machine.stands(1), machine.stands(2)) == ("Running", "Running")
    assert machine[1].attempt == 2


def test_pause_doubles_up_to_a_minute_and_a_run_resets_it():
    machine = Machine()
    machine.submit()
    pauses = []
    for _ in range(8):
        machine.ends(1, None, problem=SHORT)
        pauses.append(machine.state.deadlines.resume_at - machine.now.boot)
        machine.passes(pauses[-1])
        assert machine.stands(1) == "Running"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    machine.ends(1, 0)
    machine.submit()
    machine.ends(2, None, problem=SHORT)
    assert machine.state.deadlines.resume_at - machine.now.boot == 1


def test_starts_that_fail_together_are_one_failure():
    machine = Machine()
    machine.submit()
    machine.submit()
    machine.ends(1, None, problem=SHORT)
    machine.ends(2, None, problem=SHORT)
    assert machine.state.machine.stalls == 1


def test_deferred_job_can_be_cancelled_and_others_start_later():
    machine = Machine()
    machine.submit()
    machine.submit()
    machine.ends(1, None, problem=SHORT)
    machine.ends(2, None, problem=SHORT)
    machine.cancel(1)
    machine.passes(1)
    assert machine.stands(2) == "Running"


def test_stopping_job_ends_when_start_was_deferred():
    machine = Machine()
    machine.submit()
    machine.cancel(1)
    machine.ends(1, None, problem=SHORT)
    assert machine.stands(1) == "Cancelled (CancelledByUser)"


def test_no_more_jobs_run_than_the_daemon_has_descriptors_for():
    machine = Machine()
    machine.state.machine.most_runs = 2
    for _ in range(3):
        machine.submit(cpus=0)
    assert [machine.stands(number) for number in (1, 2, 3)] == [
        "Running",
        "Running",
        "Queued (Resources: 2 jobs run, for more the daemon has no file descriptors)",
    ]
    machine.ends(1, 0)
    assert machine.stands(3) == "Running"
