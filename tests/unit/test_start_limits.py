"""Expected starts of jobs at a limit: a cap of a group, a quota, a GPU reservation."""

from __future__ import annotations

import pytest

from gflow.core.events import Reserve, SetQuota
from gflow.core.forecast.queue_snapshot import QueueSnapshot
from gflow.core.forecast.start_limits import limit_starts
from gflow.core.forecast.start_time import Listing
from gflow.core.forecast.wait_report import wait_report
from gflow.core.state.quotas import USER, Limits

from .machine import Machine, gpu, key_of

HOUR = 3600


def expected(machine: Machine, *jobs: str | int) -> list[float | None]:
    """Seconds until the expected starts of these jobs; the listing and the report agree."""
    state, at = machine.state, machine.now
    listed = limit_starts(state, Listing(QueueSnapshot.of(state, at.boot)).starts(), at.boot)
    found: list[float | None] = []
    for job in jobs:
        start = wait_report(state, machine[job], at).start
        found.append(None if start is None else start.expected - at.wall)
        in_listing = listed.get(key_of(job))
        assert found[-1] == (None if in_listing is None else pytest.approx(in_listing - at.boot))
    return found


def four_gpus() -> Machine:
    return Machine(*map(gpu, range(4)), cpus=16)


def test_group_at_its_cap_starts_its_jobs_one_after_the_other() -> None:
    machine = four_gpus()
    machine.submit(count=3, gpus=1, group=1, max_concurrent=1, time_limit_s=HOUR)
    assert machine.running() == ["1"]
    assert expected(machine, 2, 3) == [HOUR, 2 * HOUR]


def test_array_at_its_cap_starts_at_the_first_end_of_a_task() -> None:
    machine = four_gpus()
    machine.submit(array="1-6", gpus=1, max_concurrent=2, time_limit_s=HOUR)
    assert expected(machine, 1) == [HOUR]


@pytest.mark.parametrize("limits", [Limits(max_running_gpus=2), Limits(max_running_jobs=1)])
def test_job_over_quota_starts_when_a_job_of_the_user_ends(limits: Limits) -> None:
    machine = four_gpus()
    machine.hears(SetQuota, uid=0, scope=USER, name="ann", limits=limits)
    machine.submit(gpus=2, time_limit_s=HOUR)
    machine.submit(gpus=1, time_limit_s=HOUR)
    machine.submit(gpus=1, time_limit_s=10 * HOUR, user="bob")
    assert machine.running() == ["1", "3"]
    assert expected(machine, 2) == [HOUR]


def test_job_starts_after_the_reservation_of_another_user() -> None:
    machine = four_gpus()
    now = machine.now.wall
    machine.hears(Reserve, uid=0, user="bob", gpus=(0, 1, 2, 3), count=0, start=now, end=now + 2 * HOUR)
    machine.submit(gpus=1, time_limit_s=HOUR)
    assert expected(machine, 1) == [2 * HOUR]


def test_job_that_fits_beside_a_reservation_waits_for_the_other_gpus() -> None:
    machine = four_gpus()
    now = machine.now.wall
    machine.submit(gpus=1, time_limit_s=HOUR)
    machine.hears(Reserve, uid=0, user="bob", gpus=(1, 2, 3), count=0, start=now, end=now + 2 * HOUR)
    machine.submit(gpus=1, time_limit_s=HOUR)
    assert expected(machine, 2) == [HOUR]


def test_start_is_unknown_if_the_cap_is_filled_by_a_job_elsewhere() -> None:
    machine = four_gpus()
    machine.submit(count=2, gpus=1, group=1, max_concurrent=1, time_limit_s=HOUR)
    machine.state.accounting.group_running[1] += 1
    assert expected(machine, 2) == [None]
    machine.state.accounting.group_running[1] -= 1
