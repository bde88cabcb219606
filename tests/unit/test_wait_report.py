"""The reasons in `gjob why`: each waiting job has one, in words."""

from __future__ import annotations

from gflow.core.events import SetQuota
from gflow.core.forecast.wait_report import wait_report
from gflow.core.state.quotas import USER, Limits
from gflow.text.why import why_page

from .machine import Machine, gpu


def page(machine: Machine, job: str | int) -> str:
    return why_page(machine[job], wait_report(machine.state, machine[job], machine.now), machine.now.wall)


def two_gpus() -> Machine:
    return Machine(gpu(0), gpu(1), cpus=16)


def test_dependency_that_cannot_be_met_is_the_reason() -> None:
    machine = two_gpus()
    machine.submit()
    machine.submit(depends_on=[1], no_auto_cancel=True)
    machine.ends(1, 1)
    found = page(machine, 2)
    assert "1. Dependency: job 1 did not succeed\n" in found
    assert "It never starts with this dependency." in found
    assert "gjob update 2 --clear-deps" in found


def test_many_parents_are_one_line() -> None:
    machine = two_gpus()
    machine.submit(count=9)
    machine.submit(depends_on=list(range(1, 10)))
    found = wait_report(machine.state, machine[10], machine.now).blockers
    assert [str(why) for why in found] == ["Dependency: 9 jobs are not over, the first is job 1"]


def test_jobs_before_it_are_named_with_another_priority() -> None:
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.submit(gpus=2, priority=80)
    machine.submit(gpus=2)
    assert "Priority: job 2 (priority 80) comes before it" in page(machine, 3)
    assert "Promise" not in page(machine, 3)


def test_holders_of_gpus_are_named_with_their_users() -> None:
    machine = two_gpus()
    machine.submit(gpus=1, user="bob")
    machine.submit(gpus=1)
    machine.submit(gpus=2)
    found = page(machine, 3)
    assert "Running: job 1 has GPU 0 (bob)" in found
    assert "Running: job 2 has GPU 1;" in found
    assert "1. Resources: no GPU that suits it is free\n" in found


def test_job_at_its_quota_does_not_list_running_jobs() -> None:
    machine = two_gpus()
    machine.hears(SetQuota, uid=0, scope=USER, name="ann", limits=Limits(max_running_gpus=1))
    machine.submit(gpus=1)
    machine.submit(gpus=1)
    assert [why.code for why in wait_report(machine.state, machine[2], machine.now).blockers] == ["Quota"]


def test_group_at_its_cap_says_how_many_run() -> None:
    machine = two_gpus()
    machine.submit(count=3, group=1, max_concurrent=1)
    assert "JobArrayTaskLimit: 1 job of its group is running, and the limit is 1" in page(machine, 2)
    assert "Backfill" not in page(machine, 2), "it gets no start reservation"


def test_begin_time_is_given_in_words() -> None:
    machine = two_gpus()
    machine.submit(begin_at=machine.now.wall + 3600)
    assert "1. BeginTime: it starts at " in page(machine, 1)


def test_backfill_is_not_announced_until_a_time_that_is_now() -> None:
    machine = two_gpus()
    machine.submit(gpus=2, time_limit_s=36000)
    machine.submit(gpus=2, time_limit_s=3600)
    report = wait_report(machine.state, machine[2], machine.now)
    assert report.promised_at is not None
    soon = why_page(machine[2], report, report.promised_at - 30)
    assert "Backfill" not in soon
    assert "start reservation within a minute" in soon
