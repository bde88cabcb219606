"""The reasons in `gjob why`: each waiting job has one, in words."""

from __future__ import annotations

import pytest

from gflow.core.events import SetQuota
from gflow.core.forecast.start_time import eta_query_of
from gflow.core.forecast.wait_report import Ahead, wait_report
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
    assert "Promise: job 2 has a higher priority and has a start reservation" in page(machine, 3)


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


# ---------------------------------------------------------------- starts that cannot be promised


@pytest.mark.parametrize("how", ["restricted", "drained"])
def test_job_whose_gpus_are_kept_from_jobs_gets_no_start(how: str) -> None:
    machine = Machine(gpu(0), gpu(1), gpu(2, "NVIDIA L4", 24), gpu(3, "NVIDIA L4", 24), cpus=16)
    machine.submit(gpus=1, gpu_type="l4")
    machine.submit(gpus=2, gpu_type="l4")
    assert "It starts at about" in page(machine, 2)
    if how == "restricted":
        machine.restrict(0, 1, 2)
    else:
        machine.drain(3)
    found = page(machine, 2)
    assert "It never starts on the GPUs that jobs may get now." in found
    assert "starts at about" not in found and "Backfill" not in found


def test_drained_machine_starts_nothing() -> None:
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.submit(gpus=2)
    machine.drain(reason="cooling")
    found = page(machine, 2)
    assert "1. Drained: cooling\n" in found
    assert "It never starts while the machine is drained." in found
    machine.drain(on=False)
    assert "It starts at about" in page(machine, 2)


def test_gpu_that_is_out_of_order_leaves_the_start_unknown() -> None:
    machine = two_gpus()
    machine.submit(gpus=2)
    machine.submit(gpus=2)
    machine.state.machine.foreign[1] = "leased by another daemon"
    machine.state.machine.recount()
    found = page(machine, 2)
    assert "Its start time cannot be estimated.\nIt is first in the queue.\n" in found
    assert "Backfill" not in found, "no start reservation either"


def test_start_waits_for_gpus_of_its_kind() -> None:
    machine = Machine(gpu(0), gpu(1), gpu(2, "NVIDIA L4", 24), cpus=16)
    machine.submit(gpus=1, gpu_type="l4", time_limit_s=36000)
    machine.submit(gpus=1, time_limit_s=600)
    machine.submit(gpus=1, gpu_type="l4", time_limit_s=3600)
    machine.submit(gpus=1, gpu_type="l4", time_limit_s=3600)
    for job, wait in ((3, 36000), (4, 36000 + 3600)):
        found = wait_report(machine.state, machine[job], machine.now)
        assert found.start is not None
        assert found.start.expected == pytest.approx(machine.now.wall + wait)
        assert found.start.earliest == machine.now.wall and found.start.latest > found.start.expected
        sample = eta_query_of(machine.state, machine[job], machine.now.boot).case()
        assert sample is not None and sample.worst_s == pytest.approx(wait)


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        (
            {"cpus": 4},
            ["Resources: Need 4 CPUs, only 1 free", "7 of 8 CPU slots are taken", "job 1 has 7 CPU slots"],
        ),
        (
            {"memory_mib": 20 << 10},
            [
                "Resources: Need 20 GiB memory, only 14 GiB free",
                "50 GiB of 64 GiB memory are taken",
                "job 1 has 50 GiB of memory",
            ],
        ),
    ],
)
def test_job_on_free_gpus_waits_for_cpus_or_memory(asked: dict[str, int], lines: list[str]) -> None:
    machine = Machine(gpu(0), gpu(1), cpus=8)
    machine.submit(cpus=7, memory_mib=50 << 10, time_limit_s=36000)
    machine.submit(gpus=1, time_limit_s=600)
    machine.submit(gpus=1, **asked)
    found = page(machine, 3)
    assert all(line in found for line in lines)
    assert "GPU 0" not in found, "job 2 has a GPU, but another is free"
    start = wait_report(machine.state, machine[3], machine.now).start
    assert start is not None and start.expected == pytest.approx(machine.now.wall + 36000)


def test_everything_that_is_short_is_named() -> None:
    machine = Machine(gpu(0), cpus=8)
    machine.submit(gpus=1, cpus=8, memory_mib=60 << 10)
    machine.submit(gpus=1, cpus=2, memory_mib=10 << 10)
    found = page(machine, 2)
    assert "job 1 has GPU 0;" in found
    assert "8 of 8 CPU slots are taken" in found
    assert "60 GiB of 64 GiB memory are taken" in found


def test_interval_of_weeks_is_replaced_by_what_is_ahead() -> None:
    machine = two_gpus()
    for _ in range(4):
        machine.submit(gpus=2, time_limit_s=10 * 86400)
    report = wait_report(machine.state, machine[2], machine.now)
    assert report.start is not None and report.interval_s is None, "ten days are of use"
    report = wait_report(machine.state, machine[4], machine.now)
    assert report.start is None
    assert report.ahead == Ahead(2, 20 * 86400)
    found = why_page(machine[4], report, machine.now.wall)
    assert "When it starts is not known: probably within 31 days.\n" in found
    assert (
        "number 3 in the queue; the 2 jobs before it would use all of the machine\nfor 20-00:00:00." in found
    )
