"""Faults that the search has found, each as the shortest scenario that shows it."""

from __future__ import annotations

from typing import Any

import pytest

from gflow.core.events import Cancel, Exited, GpusSeen, Hold, Idled, Release, Tick, Update
from gflow.core.ids import JobKey, job_key, label, parse_label
from gflow.core.model import Idle, JobState
from gflow.core.policy import Policy
from gflow.core.reasons import parse
from gflow.testing import spec, submit
from gflow.testing.clock import DAY_S
from tests.property.world import CPUS, World


class Scenario(World):
    """A world in which events are written in one line. Every one of them is held against the laws."""

    def submit(self, *specs: Any, uid: int = 1001) -> None:
        outcomes = self.store.outcomes([key for made in specs for key in made.parents])
        assert self.apply(submit(self.clock, *specs, uid=uid, outcomes=outcomes))

    def end(self, *names: str, code: int | None = 0, problem: str = "") -> None:
        for name in names:
            attempt = self.state.jobs[key(name)].attempt
            self.apply(
                Exited(at=self.clock.now(), key=key(name), attempt=attempt, code=code, problem=parse(problem))
            )

    def cancel(self, *names: str) -> None:
        assert self.apply(Cancel(at=self.clock.now(), uid=0, keys=tuple(map(key, names))))

    def update(self, *names: str, **fields: Any) -> bool:
        keys = tuple(map(key, names))
        return self.apply(Update(at=self.clock.now(), uid=0, keys=keys, fields=fields, outcomes={}))

    def running(self) -> list[str]:
        return [label(each) for each in sorted(self.reference.runs)]

    def ended(self, name: str) -> JobState | None:
        return self.reference.outcomes.get(key(name))


def key(name: str) -> JobKey:
    found = parse_label(name)
    assert found is not None
    return found


@pytest.fixture
def scenario() -> Scenario:
    return Scenario()


def test_exit_of_an_array_record_is_ignored(scenario):
    """It gave back CPU slots that the array's record never had."""
    scenario.submit(spec(array="0-1"))
    scenario.apply(Exited(at=scenario.clock.now(), key=key("1"), attempt=1, code=0))
    assert scenario.running() == ["1_0", "1_1"]
    assert scenario.state.machine.free_cpus == CPUS - 2


def test_a_cancelled_job_does_not_come_back_from_its_time_limit(scenario):
    """Over its limit and asked to be requeued, it ignored the cancel and started again."""
    scenario.submit(spec(time_limit_s=10, requeue=True))
    scenario.clock.advance(10)
    scenario.apply(Tick(at=scenario.clock.now()))
    scenario.cancel("1")
    scenario.end("1", code=75)
    assert scenario.ended("1") is JobState.CANCELLED


@pytest.mark.parametrize("keep", [False, True])
def test_waiting_tasks_of_cancelled_array_end_at_once(scenario, keep):
    """A dependent of such a task waited for a job that did not exist, and a restart disagreed."""
    scenario.submit(spec(array="0-9"))
    scenario.submit(spec(depends_on=(key("1_9"),), no_auto_cancel=keep))
    scenario.cancel("1")
    assert scenario.ended("2") is (None if keep else JobState.CANCELLED)
    scenario.restart()
    scenario.submit(spec(depends_any=(key("1_9"),), no_auto_cancel=True))
    scenario.restart()
    scenario.end(*scenario.running())
    assert scenario.ended("1") is JobState.CANCELLED
    scenario.restart()


def test_unstarted_task_is_known_before_commit(scenario):
    """In the turn in which its array ended it was "no job to depend on"."""
    scenario.submit(spec(array="0-9", hold=True))
    scenario.commit()
    scenario.cancel("1")
    scenario.submit(spec(depends_on=(key("1_9"),), no_auto_cancel=True))
    scenario.restart()


def test_begun_array_survives_failed_dependency(scenario):
    """It became final while its tasks ran, and their ends found no array."""
    scenario.submit(spec(array="0-9"), spec(hold=True))
    assert scenario.update("1", depends_on=(key("2"),))
    scenario.cancel("2")
    assert scenario.running() == ["1_0", "1_1", "1_2", "1_3", "1_4", "1_5"]
    scenario.restart()
    scenario.end(*scenario.running())
    assert scenario.running() == []
    assert scenario.ended("1") is JobState.CANCELLED


def retries(scenario: Scenario) -> None:
    """Array 1 with two tasks that have run, failed, and wait for a second attempt."""
    scenario.submit(spec(array="0-1,7-9", cpus=2, max_retries=1, max_concurrent=2))
    scenario.submit(*[spec(cpus=2, priority=99)] * 3)
    scenario.end("1_0", "1_1", code=1)
    assert scenario.running() == ["2", "3", "4"]


def test_a_retry_cannot_wait_for_its_own_array_directly_or_not(scenario):
    """It never ended: the array ends only when the retry does."""
    retries(scenario)
    scenario.submit(spec(depends_on=(key("1"),)))
    assert not scenario.update("1_0", depends_on=(key("1"),))
    assert not scenario.update("1_0", depends_on=(key("5"),))
    assert scenario.update("1_0", depends_on=(key("1_7"),)), "but for a task that waits in the array it can"
    assert not scenario.update("1", depends_on=(key("1_7"),))


def test_array_cancel_covers_waiting_retries(scenario):
    """The first one's end took the second along, which was then cancelled once more."""
    retries(scenario)
    assert scenario.update("1_1", depends_on=(key("1_0"),))
    scenario.cancel("1")
    assert scenario.ended("1_1") is scenario.ended("1") is JobState.CANCELLED


def test_a_cap_given_later_makes_a_group(scenario):
    """All jobs without a group counted as one, running ones too."""
    scenario.submit(spec(), spec(), spec(hold=True), spec(hold=True))
    assert scenario.update("3", "4", max_concurrent=1)
    scenario.apply(Release(at=scenario.clock.now(), uid=0, keys=(key("3"), key("4"))))
    assert scenario.running() == ["1", "2", "3"]
    assert scenario.update("1", "2", max_concurrent=2), "also while they run"
    scenario.restart()
    scenario.end("3")
    assert scenario.running() == ["1", "2", "4"]


def test_array_and_jobs_beside_it_have_own_caps(scenario):
    """Both groups had the number of the first job, which was the array."""
    capped = spec(max_concurrent=1, group=1)
    scenario.submit(spec(array="0-3", max_concurrent=2), capped, capped)
    assert scenario.running() == ["1_0", "1_1", "2"]
    assert scenario.state.jobs[job_key(1)].spec.group != 1


def test_a_job_whose_gpu_vanished_can_still_be_changed(scenario):
    """Any change was refused: the machine could not run such a job, though it was running it."""
    scenario.submit(spec(gpus=6, time_limit_s=60))
    scenario.apply(GpusSeen(at=scenario.clock.now(), gpus=()))
    assert scenario.update("1", time_limit_s=600)


def test_tasks_start_behind_reserved_first_tasks():
    """A start reservation of a newcomer was gone, and the jobs behind it were not considered again."""
    strict = Policy(order="arrival", patience=0.0, backfill=False)
    scenario = Scenario(policy=strict)
    scenario.submit(spec(array="0-2"), spec(array="0-2"))
    assert scenario.running() == ["1_0", "1_1", "1_2", "2_0", "2_1", "2_2"]


def test_new_begin_time_ends_the_retry_delay(scenario):
    """The reference model expected the retry delay, though a release or an update had ended it."""
    for free in (release_now, update_now):
        scenario.submit(spec(max_retries=1, retry_delay_s=5000))
        (name,) = scenario.running()
        scenario.end(name, code=1)
        assert scenario.running() == []
        free(scenario, name)
        assert scenario.running() == [name]
        scenario.end(name)


def release_now(scenario: Scenario, name: str) -> None:
    now = scenario.clock.now()
    assert scenario.apply(Release(at=now, uid=0, keys=(key(name),), begin_at=now.wall - 100))


def update_now(scenario: Scenario, name: str) -> None:
    assert scenario.update(name, begin_at=scenario.clock.wall - 100)


def test_usage_of_departed_users_is_forgotten(scenario):
    """A band outlived its reason: two jobs whose time came together started in another order than after a
    restart, which forgets the bands of users without jobs."""
    begin = scenario.clock.wall + 20 * DAY_S
    for uid, hours in ((1001, 100), (1002, 1)):
        scenario.submit(spec(gpus=4), uid=uid)
        scenario.clock.advance(hours * 3600.0)
        scenario.end(*scenario.running())
    scenario.submit(spec(gpus=4), spec(gpus=4), uid=1002)
    scenario.submit(spec(gpus=4), uid=1001)
    for _ in range(3):  # in the first of these rounds both are looked at
        scenario.end(*scenario.running())
    scenario.restart()
    scenario.submit(spec(gpus=4, begin_at=begin), uid=1001)
    scenario.submit(spec(gpus=4, begin_at=begin), uid=1002)
    scenario.clock.advance(begin - scenario.clock.wall)
    scenario.apply(Tick(at=scenario.clock.now()))
    assert len(scenario.running()) == 1


def test_backfill_starts_in_the_step_of_the_preemption():
    """The start reservations changed after the round, and no job was considered before the next event."""
    scenario = Scenario(
        policy=Policy(order="arrival", patience=0.0, lengths="limits", max_start_reservations=1)
    )
    scenario.submit(spec(gpus=4, time_limit_s=1000, preemptible=True), spec(gpus=1, time_limit_s=100))
    scenario.submit(spec(gpus=2, preemptible=True), spec(gpus=1, preemptible=True))
    assert scenario.running() == ["1", "2"], "the third reserves what the fourth would need"
    scenario.submit(spec(gpus=4))
    assert scenario.running() == ["1", "2", "4"]


def test_job_of_known_length_backfills_past_unknown(scenario):
    """An unknown job closed the way for all after it that ask for as many GPUs. And once the known one had
    started, not that much was idle any more: the unknown one might have passed too, and did not."""
    scenario.submit(spec(gpus=2, name="long"))
    scenario.clock.advance(20_000)
    scenario.end("1")
    scenario.submit(spec(gpus=2, name="long"))
    scenario.submit(spec(gpus=4))
    scenario.submit(spec(gpus=6, time_limit_s=60))
    scenario.submit(spec(gpus=1))
    scenario.submit(spec(gpus=1, time_limit_s=9000))
    scenario.clock.advance(500)
    scenario.end("3")
    assert scenario.running() == ["2", "5", "6"]


def test_cpu_job_gets_start_reservation_behind_gpu_jobs():
    """All start reservations went to jobs with GPUs while some of them waited: it could starve."""
    scenario = Scenario(policy=Policy(order="arrival", patience=0.0, lengths="limits"))
    wide = spec(gpus=4, cpus=1, time_limit_s=1000)
    scenario.submit(wide, spec(cpus=CPUS, time_limit_s=1000))
    scenario.submit(wide, wide, wide)
    scenario.submit(spec(cpus=1, time_limit_s=5000))
    assert scenario.running() == ["1"], "the last would delay the one without GPUs"
    scenario.end("1")
    assert scenario.running() == ["2"], "who has waited longest comes first"


@pytest.mark.parametrize("is_awaited", [False, True])
def test_stop_of_an_idle_job_preempts_nothing_whatever_waits_for_a_start(scenario, is_awaited):
    """A job that waited for the start of another made every event preempt."""
    scenario.submit(spec(gpus=4, stop_if_idle_s=60), spec(gpus=2, preemptible=True))
    scenario.submit(spec(gpus=6, priority=50))
    if is_awaited:
        scenario.submit(spec(depends_start=(key("3"),)))
    scenario.apply(Idled(at=scenario.clock.now(), key=key("1"), attempt=1, idle=Idle(1, 60.0, "idle")))
    assert scenario.reference.stopping == {key("1")}
    scenario.end("1")
    assert scenario.reference.stopping == {key("2")}


def reserved_after(scenario, seconds: float, limit_s: int) -> list[str]:
    """The jobs with start reservations, after a round at this time.

    Job 2 begins after 90 s and is the first of a group with job 3, which waits from the beginning for jobs of
    this time limit. Jobs 4 and 5 are due after 80 s, and so is job 6, of a lower priority.
    """
    now = scenario.clock.now().wall
    scenario.submit(spec(gpus=6, cpus=1), spec(gpus=6, time_limit_s=limit_s, begin_at=now + 90.0))
    scenario.submit(spec(gpus=6, time_limit_s=limit_s))
    scenario.clock.advance(1.0)
    scenario.submit(spec(gpus=6, time_limit_s=50), spec(gpus=6, time_limit_s=40))
    scenario.submit(spec(gpus=6, priority=5, time_limit_s=40), spec(gpus=6, priority=1), spec())
    for passed in (seconds - 10.0, 10.0):
        scenario.apply(Tick(at=scenario.clock.advance(passed)))
    scenario.end("8")
    return [label(one.key) for one in scenario.state.start_reservations.entries]


def test_hold_of_the_first_of_a_group_moves_reservations(scenario):
    """The next of its group had waited for longer and barred others, whose reservations were kept."""
    assert reserved_after(scenario, 100.0, 10_000) == ["4", "5", "6"]
    assert scenario.apply(Hold(at=scenario.clock.now(), uid=0, keys=(key("2"),)))
    entries = scenario.state.start_reservations.entries
    assert [label(one.key) for one in entries if one.place == one.group.bucket.place] == ["6"]


def test_job_that_becomes_the_first_of_a_group_moves_reservations(scenario):
    """It has waited for less than the job that was the first, and whose reservation was kept."""
    assert reserved_after(scenario, 88.0, 45) == ["3", "4", "6"]
    scenario.apply(Tick(at=scenario.clock.advance(10.0)))
    assert [label(one.key) for one in scenario.state.start_reservations.entries] == ["4", "5", "6"]
