"""Jobs that starved behind jobs that cannot start: each as the shortest scenario that shows it."""

from __future__ import annotations

from typing import Any

import pytest

from gflow.core.engine import step
from gflow.core.events import Drain, GpusSeen, Reserve, SetQuota, Submit, Tick, Unclaim
from gflow.core.model import Moment
from gflow.core.scheduling import scheduler
from gflow.core.state.quotas import Limits
from gflow.core.state.state import State
from gflow.testing import spec
from gflow.testing.clock import DAY_S
from tests.property.test_regressions import Scenario, key
from tests.property.world import POOL

NARROW = spec(gpus=1, time_limit_s=3600, name="narrow")
WIDE = spec(gpus=6, time_limit_s=600, name="wide")
ONE_GPU = Limits(max_running_gpus=1)


@pytest.fixture
def scenario() -> Scenario:
    """All GPUs are busy."""
    scenario = Scenario()
    for _ in range(6):
        scenario.submit(NARROW)
        scenario.clock.advance(1)
    return scenario


def crowd(scenario: Scenario) -> None:
    """For ten hours there is always a job that would take the next free GPU."""
    for _ in range(60):
        scenario.submit(NARROW)
        scenario.clock.advance(600)
        if narrow := [name for name in scenario.running() if scenario.state.jobs[key(name)].spec is NARROW]:
            scenario.end(min(narrow, key=lambda name: scenario.state.jobs[key(name)].started_at or 0.0))


def waits(scenario: Scenario, name: str) -> bool:
    return any(job.spec.name == name and job in scenario.state.ready for job in scenario.state.jobs.values())


def blind(scenario: Scenario) -> None:
    """The reference model knows nothing of quotas and reservations."""
    scenario.reference.check = lambda *_: None  # type: ignore[method-assign]


def test_wide_job_starts_in_a_crowd(scenario):
    scenario.submit(WIDE)
    crowd(scenario)
    assert not waits(scenario, "wide")


def test_preemptible_jobs_do_not_hold_all_start_reservations(scenario):
    """All other jobs passed them, and they kept their start reservations."""
    for name in "ab":
        scenario.submit(spec(gpus=6, time_limit_s=600, name=name, preemptible=True))
    scenario.submit(WIDE)
    crowd(scenario)
    assert not waits(scenario, "wide")


def test_jobs_over_quota_do_not_block_others(scenario):
    """The oldest twenty were asked, and none of them could have started."""
    none = Limits(max_running_jobs=0)
    scenario.apply(SetQuota(at=scenario.clock.now(), uid=0, scope="project", name="ann", limits=none))
    waiting = {"gpus": 1, "time_limit_s": 60, "project": "ann", "allow_unsatisfiable": True}
    scenario.submit(*[spec(**waiting, name=f"ann{n}") for n in range(20)], uid=1002)
    scenario.submit(WIDE)
    blind(scenario)
    crowd(scenario)
    assert not waits(scenario, "wide")


def behind(*blocking: Any, quota: bool = False) -> list[str]:
    """The names of jobs with start reservations when these jobs of one user, and a wide job behind them, have
    waited for two days. Without `quota`, one GPU is drained."""
    state = State(cpus=64, memory_mib=1 << 20)
    step(state, GpusSeen(at=Moment(0.0, 0.0), gpus=POOL))
    if quota:
        step(state, SetQuota(at=Moment(0.0, 0.0), uid=0, scope="user", name="ann", limits=ONE_GPU))
    else:
        step(state, Drain(at=Moment(0.0, 0.0), uid=0, on=True, gpus=(5,)))
    running = [spec(gpus=1, time_limit_s=360_000)] * 5
    wide = spec(gpus=5, time_limit_s=600, name="wide")
    for number, specs in enumerate(([running[0]], running[1:], blocking, [wide])):
        at, user = Moment(number, number), ("ann", "eve", "ann", "bob")[number]
        submitted = Submit(at=at, uid=1000 + ord(user[0]), user=user, specs=tuple(specs), outcomes={})
        step(state, submitted)
    step(state, Unclaim(at=Moment(172_800.0, 172_800.0), keys=()))
    return [state.jobs[one.key].spec.name for one in state.start_reservations.entries]


def test_many_groups_over_quota_do_not_block_others():
    """The oldest 500 groups were looked at, and all of them were over the quota of one user."""
    assert behind(*[spec(gpus=1, time_limit_s=3600 + number) for number in range(600)], quota=True) == [
        "wide"
    ]


def test_jobs_that_no_usable_gpus_fit_do_not_block_others():
    """Twenty of them ended the search."""
    assert behind(*[spec(gpus=6, time_limit_s=3600 + number) for number in range(25)]) == ["wide"]


def test_job_that_no_usable_gpus_fit_does_not_block_others_before_it_is_due():
    assert behind(spec(gpus=6, time_limit_s=60 * 86_400)) == ["wide"]


def test_spellings_of_one_type_of_gpu_share_their_start_reservations():
    """Each part of a model's name had two reservations of its own."""
    state = State(cpus=64, memory_mib=1 << 20)
    step(state, GpusSeen(at=Moment(0.0, 0.0), gpus=POOL[:4]))
    names = ("", "NVIDIA", "nvidia", "a100", "A100", "80GB")
    narrow = [spec(gpus=1, time_limit_s=60, gpu_type=name) for name in names]
    for specs in ([spec(gpus=4, time_limit_s=360_000)], narrow):
        step(state, Submit(at=Moment(1.0, 1.0), uid=1001, user="ann", specs=tuple(specs), outcomes={}))
    step(state, Unclaim(at=Moment(100_000.0, 100_000.0), keys=()))
    assert [one.key >> 20 for one in state.start_reservations.entries] == [2, 3]


def test_cpu_start_reservation_does_not_block_gpu_reservations():
    """A late job took a GPU of one that had waited long enough: reservations were not searched again."""
    scenario = Scenario()
    scenario.submit(spec(gpus=5, time_limit_s=36_000), spec(cpus=1, time_limit_s=36_000))
    scenario.submit(spec(cpus=6, time_limit_s=60), spec(gpus=6, time_limit_s=6000))
    scenario.clock.advance(500)
    scenario.apply(Tick(at=scenario.clock.now()))
    scenario.submit(spec(gpus=6, time_limit_s=60_000))
    scenario.clock.advance(20_000)
    scenario.submit(spec(gpus=1, time_limit_s=72_000, name="late"))
    assert waits(scenario, "late")


def test_job_becomes_due_while_it_is_reserved_against_others():
    """Its reservation against users who used more hid that it was due, until another job ended."""
    scenario = Scenario()
    for _ in range(4):
        scenario.submit(spec(gpus=1, time_limit_s=360_000, name="long"))
    scenario.clock.advance(1)
    scenario.submit(spec(gpus=6, time_limit_s=360_000, name="own"))
    scenario.submit(spec(gpus=6, time_limit_s=600, name="victim"), uid=1002)
    scenario.clock.advance(10)
    scenario.apply(Unclaim(at=scenario.clock.now(), keys=()))
    scenario.clock.advance(20_000)
    scenario.submit(spec(gpus=1, time_limit_s=360_000, name="late"), uid=1003)
    assert waits(scenario, "late")


def test_due_job_that_is_not_noticed_breaks_an_invariant(monkeypatch):
    monkeypatch.setattr(scheduler, "_refresh_reservations", lambda state, at: False)
    with pytest.raises(AssertionError, match="binds from"):
        test_job_becomes_due_while_it_is_reserved_against_others()


def test_first_job_of_a_priority_is_reserved_at_its_submission():
    """A job of a lower priority passed it, because there was a reservation of a higher one."""
    scenario = Scenario()
    scenario.submit(spec(gpus=3, time_limit_s=36_000), spec(gpus=2, time_limit_s=72_000))
    scenario.submit(spec(gpus=3, time_limit_s=60_000))
    scenario.submit(spec(gpus=6, time_limit_s=60_000, priority=5))
    scenario.submit(spec(gpus=6, time_limit_s=60_000, priority=7))
    scenario.submit(spec(gpus=1, time_limit_s=100_000, name="late", priority=6))
    assert waits(scenario, "late")


def test_job_that_cannot_preempt_does_not_block_preemption():
    """The first twenty in line were asked, and none of them wanted a GPU."""
    scenario = Scenario()
    scenario.submit(spec(gpus=6, time_limit_s=3600, preemptible=True), spec(cpus=6, time_limit_s=3600))
    scenario.submit(*[spec(cpus=1, time_limit_s=60, name=f"c{n}") for n in range(20)])
    scenario.submit(spec(gpus=1, time_limit_s=3600, cpus=0))
    assert scenario.state.jobs[key("1")].stopping is not None


def test_reserved_gpu_does_not_prevent_preemption():
    scenario = Scenario()
    blind(scenario)
    now = scenario.clock.wall
    scenario.submit(spec(gpus=5, time_limit_s=3600, preemptible=True))
    scenario.apply(Reserve(at=scenario.clock.now(), uid=0, user="zoe", gpus=(5,), start=now, end=now + DAY_S))
    scenario.submit(spec(gpus=1, time_limit_s=3600))
    assert scenario.state.jobs[key("1")].stopping is not None
