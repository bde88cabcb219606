"""Early stopping: rules that are judged by progress reports, and their records across restarts."""

from __future__ import annotations

import pytest

from gflow.core.events import Progressed
from gflow.core.ids import job_key
from gflow.core.invariants import check
from gflow.core.model import JobProgress, JobState
from gflow.daemon.loop.stored_state import keep_counts, reload
from gflow.store.port import Changes

from .machine import Machine, gpu, key_of

AT_500 = "loss > 2 at step 500"
MEDIAN = "loss above median at step 10"


def machine_of(*gpus):
    """Not careful, because reports are not stored; `reports` and the property tests check the invariants."""
    return Machine(*gpus, cpus=8, careful=False)


def reports(machine, job, step, *, steps=0, attempt=0, only=None, nan=(), **metrics):
    loss = metrics.pop("loss", None)
    report = JobProgress(at=machine.now.wall, step=step, steps=steps, loss=loss, metrics=metrics, nan=nan)
    attempt = attempt or machine[job].attempt
    machine.hears(Progressed, key=key_of(job), attempt=attempt, progress=report, only=only)
    check(machine.state)


def restarts(machine):
    """Commit what the loop would, and load it as the next daemon does."""
    changes = Changes()
    keep_counts(changes, machine.state)
    machine.store.commit(changes)
    machine.state = reload(machine.state, machine.store)


@pytest.mark.parametrize(
    ("rule", "said", "why"),
    [
        (AT_500, [(499, 9.0)], ""),
        (AT_500, [(500, 3.1)], "loss 3.1 > 2 at step 500"),
        (AT_500, [(499, 9.0), (512, 2.5)], "loss 2.5 > 2 at step 512"),
        (AT_500, [(500, 1.0), (501, 9.0)], ""),  # judged once
        (AT_500, [(500, None), (501, 9.0)], "loss 9 > 2 at step 501"),  # the first report that has it
        ("loss > 2 after step 500", [(499, 9.0), (500, 1.0), (600, 9.0)], "loss 9 > 2 at step 600"),
        ("loss > 2", [(0, 1.0), (1, 2.5)], "loss 2.5 > 2 at step 1"),
        ("loss >= 2", [(1, 2.0)], "loss 2 >= 2 at step 1"),
        ("loss < 2", [(1, 2.0)], ""),
        ("loss <= 2", [(1, 2.0)], "loss 2 <= 2 at step 1"),
        (MEDIAN, [(10, 9e9)], ""),  # no siblings
    ],
)
def test_rule_is_judged_at_its_step(rule, said, why):
    machine = machine_of(gpu(0))
    machine.submit(gpus=1, stop_when=(rule,))
    for step, loss in said:
        reports(machine, 1, step, loss=loss)
    assert (machine[1].stopping is JobState.CANCELLED) == bool(why)
    assert machine.stands(1) == ("Running (StoppedEarly: " + why + ")" if why else "Running")


def test_stopped_job_ends_as_cancelled_and_is_not_retried():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1, stop_when=("acc < 0.5 at step 5",), max_retries=3, requeue=True)
    machine.submit(depends_on=[1])
    reports(machine, 1, 5, acc=0.1)
    assert machine.did == [
        "save 1 Running/stopping",
        "note 1 early stop: acc 0.1 < 0.5 at step 5",
        "stop 1 #1",
    ]
    reports(machine, 1, 6, acc=0.2)
    assert machine.did == []
    machine.ends(1, 75)
    assert machine.stands(1) == "Cancelled (StoppedEarly: acc 0.1 < 0.5 at step 5)"
    assert machine.stands(2) == "Cancelled (DependencyFailed:1)"


def test_user_cancel_after_an_early_stop_keeps_the_reason():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1, stop_when=("loss > 2",))
    reports(machine, 1, 5, loss=3.0)
    machine.cancel(1, now=True)
    machine.ends(1, 0)
    assert machine.stands(1) == "Cancelled (StoppedEarly: loss 3 > 2 at step 5)"


def test_nan_is_met_by_its_own_rule_only():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1, stop_when=("loss > 2", "loss < 2", "f1 is nan"))
    reports(machine, 1, 1, nan=("loss",))
    assert machine[1].stopping is None
    reports(machine, 1, 2, only=("step",), nan=("f1",))
    assert machine.stands(1) == "Running (StoppedEarly: f1 is nan or inf at step 2)"


def test_merged_report_replaces_a_value_by_nan_and_back():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1)
    reports(machine, 1, 1, loss=1.0, f1=0.5)
    reports(machine, 1, 2, only=("step",), nan=("loss", "f1"))
    report = machine[1].progress_report
    assert (report.step, report.loss, report.metrics, set(report.nan)) == (2, None, {}, {"loss", "f1"})
    reports(machine, 1, 2, only=("loss",), loss=0.5)
    assert (machine[1].progress_report.loss, machine[1].progress_report.nan) == (0.5, ("f1",))


def test_report_of_the_last_step_stops_nothing():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1, stop_when=("loss > 2",))
    reports(machine, 1, 100, steps=100, loss=9.0)
    machine.ends(1, 0)
    assert machine.stands(1) == "Finished"


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([1.0, 2.0, 9.0], ""),  # two siblings are too few
        ([1.0, 2.0, 3.0, 2.5], "loss 2.5 above the median 2 of 3 jobs at step 10"),
        ([1.0, 2.0, 3.0, 2.0], ""),
        ([1.0, 2.0, 3.0, 1.0, 1.6], "loss 1.6 above the median 1.5 of 4 jobs at step 10"),
        ([1.0, 2.0, 3.0, 1.0, 1.5], ""),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_median_rule_compares_with_siblings_that_have_ended(losses, why, is_restarted):
    machine = machine_of()
    number = machine.submit(count=len(losses), group=1, cpus=1, stop_when=(MEDIAN,))
    for job, loss in enumerate(losses[:-1], number):
        reports(machine, job, 12, loss=loss)
        machine.ends(job, 0 if machine[job].stopping is None else 1)
    if is_restarted:
        restarts(machine)
    reports(machine, len(losses), 10, loss=losses[-1])
    assert machine.stands(len(losses)) == (f"Running (StoppedEarly: {why})" if why else "Running")


def test_rule_judged_before_a_restart_is_not_judged_again():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1, stop_when=(AT_500,))
    reports(machine, 1, 500, loss=1.0)
    restarts(machine)
    reports(machine, 1, 700, loss=9.0)
    assert machine[1].stopping is None
    machine.ends(1)
    restarts(machine)
    assert machine.state.groups.judged == {}


def test_tasks_of_an_array_are_siblings():
    machine = machine_of()
    machine.submit(array="0-3", cpus=1, stop_when=("acc below median at step 1",))
    for task, acc in enumerate([0.9, 0.8, 0.7, 0.1]):
        reports(machine, f"1_{task}", 1, acc=acc)
    assert machine.stands("1_3") == "Running (StoppedEarly: acc 0.1 below the median 0.8 of 3 jobs at step 1)"


def test_unrelated_jobs_are_not_siblings():
    machine = machine_of()
    machine.submit(count=5, cpus=1, stop_when=(MEDIAN,))
    for job in range(1, 6):
        reports(machine, job, 10, loss=float(job))
    assert all(machine[job].stopping is None for job in range(1, 6))


def test_records_of_a_group_are_deleted_at_its_end():
    machine = machine_of()
    machine.submit(count=2, group=1, cpus=1, stop_when=(MEDIAN,))
    for job in (1, 2):
        reports(machine, job, 10, loss=1.0)
    restarts(machine)
    assert {key: list(rules) for key, rules in machine.state.groups.judged[1].items()} == {
        job_key(1): [MEDIAN], job_key(2): [MEDIAN],
    }  # fmt: skip
    for job in (1, 2):
        machine.ends(job)
    restarts(machine)
    assert not [name for name in machine.store.load().meta if name.startswith("group ")]
    assert not (machine.state.groups.judged or machine.state.groups.tallies or machine.state.groups.values)


def test_records_that_an_older_daemon_left_are_deleted():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1, stop_when=(AT_500,))
    reports(machine, 1, 500, loss=1.0)
    tally = '{"since":1.0,"ended":{"finished":1}}'
    left = {
        "group 5/": tally,
        "group -6/": tally,
        "group 5/5/": f'{{"{MEDIAN}":1.0}}',
        "group 0/7/": '{"x > 1 at step 1":1}',
    }
    machine.store.commit(Changes(meta={**left, "group 8/": "damaged"}))
    for _ in range(2):
        restarts(machine)
    assert [name for name in machine.store.load().meta if name.startswith("group ")] == [
        "group 8/",
        "group 0/1/",
    ]
    assert (
        machine.state.groups.judged == {0: {job_key(1): {AT_500: 1.0}}} and not machine.state.groups.tallies
    )


def test_rule_given_to_a_running_job_is_judged_by_its_next_report():
    machine = machine_of(gpu(0))
    machine.submit(gpus=1)
    reports(machine, 1, 5, loss=9.0)
    machine.update(1, stop_when=("loss > 2",))
    reports(machine, 1, 6, loss=9.0)
    assert machine[1].stopping is JobState.CANCELLED
