"""What the search has found once, each as the shortest story that shows it."""

from __future__ import annotations

from typing import Any

import pytest

from gflow.core.events import Cancel, Exited, GpusSeen, Release, Tick, Update
from gflow.core.ids import JobKey, job_key, label, parse_label
from gflow.core.model import JobState
from gflow.core.policy import Policy
from gflow.core.reasons import parse
from gflow.testing import spec, submit
from gflow.testing.clock import DAY_S
from tests.property.world import CPUS, World


class Story(World):
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
        return [label(each) for each in sorted(self.ledger.runs)]

    def ended(self, name: str) -> JobState | None:
        return self.ledger.outcomes.get(key(name))


def key(name: str) -> JobKey:
    found = parse_label(name)
    assert found is not None
    return found


@pytest.fixture
def story() -> Story:
    return Story()


def test_exit_of_an_array_record_is_ignored(story):
    """It gave back CPU slots that the array's record never had."""
    story.submit(spec(array="0-1"))
    story.apply(Exited(at=story.clock.now(), key=key("1"), attempt=1, code=0))
    assert story.running() == ["1_0", "1_1"]
    assert story.state.machine.free_cpus == CPUS - 2


def test_a_cancelled_job_does_not_come_back_from_its_time_limit(story):
    """Over its limit and asked to be requeued, it ignored the cancel and started again."""
    story.submit(spec(time_limit_s=10, requeue=True))
    story.clock.advance(10)
    story.apply(Tick(at=story.clock.now()))
    story.cancel("1")
    story.end("1", code=75)
    assert story.ended("1") is JobState.CANCELLED


@pytest.mark.parametrize("keep", [False, True])
def test_waiting_tasks_of_cancelled_array_end_at_once(story, keep):
    """Whoever depended on such a task waited for a job that was not there, and a restart disagreed."""
    story.submit(spec(array="0-9"))
    story.submit(spec(depends_on=(key("1_9"),), no_auto_cancel=keep))
    story.cancel("1")
    assert story.ended("2") is (None if keep else JobState.CANCELLED)
    story.restart()
    story.submit(spec(depends_any=(key("1_9"),), no_auto_cancel=True))
    story.restart()
    story.end(*story.running())
    assert story.ended("1") is JobState.CANCELLED
    story.restart()


def test_unstarted_task_is_known_before_commit(story):
    """In the turn in which its array ended it was "no job to depend on"."""
    story.submit(spec(array="0-9", hold=True))
    story.commit()
    story.cancel("1")
    story.submit(spec(depends_on=(key("1_9"),), no_auto_cancel=True))
    story.restart()


def test_begun_array_survives_failed_dependency(story):
    """It became final while its tasks ran, and their ends found no array."""
    story.submit(spec(array="0-9"), spec(hold=True))
    assert story.update("1", depends_on=(key("2"),))
    story.cancel("2")
    assert story.running() == ["1_0", "1_1", "1_2", "1_3", "1_4", "1_5"]
    story.restart()
    story.end(*story.running())
    assert story.running() == []
    assert story.ended("1") is JobState.CANCELLED


def retries(story: Story) -> None:
    """Array 1 with two tasks that have run, failed, and wait for a second attempt."""
    story.submit(spec(array="0-1,7-9", cpus=2, max_retries=1, max_concurrent=2))
    story.submit(*[spec(cpus=2, priority=99)] * 3)
    story.end("1_0", "1_1", code=1)
    assert story.running() == ["2", "3", "4"]


def test_a_retry_cannot_wait_for_its_own_array_directly_or_not(story):
    """It waited for ever: the array ends only when the retry does."""
    retries(story)
    story.submit(spec(depends_on=(key("1"),)))
    assert not story.update("1_0", depends_on=(key("1"),))
    assert not story.update("1_0", depends_on=(key("5"),))
    assert story.update("1_0", depends_on=(key("1_7"),)), "but for a task that waits in the array it can"
    assert not story.update("1", depends_on=(key("1_7"),))


def test_array_cancel_covers_waiting_retries(story):
    """The first one's end took the second along, which was then cancelled once more."""
    retries(story)
    assert story.update("1_1", depends_on=(key("1_0"),))
    story.cancel("1")
    assert story.ended("1_1") is story.ended("1") is JobState.CANCELLED


def test_a_cap_given_later_makes_a_group(story):
    """All jobs without a group counted as one, running ones too."""
    story.submit(spec(), spec(), spec(hold=True), spec(hold=True))
    assert story.update("3", "4", max_concurrent=1)
    story.apply(Release(at=story.clock.now(), uid=0, keys=(key("3"), key("4"))))
    assert story.running() == ["1", "2", "3"]
    assert story.update("1", "2", max_concurrent=2), "also while they run"
    story.restart()
    story.end("3")
    assert story.running() == ["1", "2", "4"]


def test_array_and_jobs_beside_it_have_own_caps(story):
    """Both groups had the number of the first job, which was the array."""
    capped = spec(max_concurrent=1, group=1)
    story.submit(spec(array="0-3", max_concurrent=2), capped, capped)
    assert story.running() == ["1_0", "1_1", "2"]
    assert story.state.jobs[job_key(1)].spec.group != 1


def test_a_job_whose_gpu_vanished_can_still_be_changed(story):
    """Any change was refused: the machine could not run such a job, though it was running it."""
    story.submit(spec(gpus=6, time_limit_s=60))
    story.apply(GpusSeen(at=story.clock.now(), gpus=()))
    assert story.update("1", time_limit_s=600)


def test_tasks_start_behind_reserved_first_tasks():
    """A promise that a newcomer kept was gone, and those who had waited for it were not looked at again."""
    strict = Policy(order="arrival", patience=0.0, backfill=False)
    story = Story(policy=strict)
    story.submit(spec(array="0-2"), spec(array="0-2"))
    assert story.running() == ["1_0", "1_1", "1_2", "2_0", "2_1", "2_2"]


def test_new_begin_time_ends_the_retry_delay(story):
    """The ledger took the pause before a retry for kept, though somebody had let the job go at once."""
    for free in (release_now, update_now):
        story.submit(spec(max_retries=1, retry_delay_s=5000))
        (name,) = story.running()
        story.end(name, code=1)
        assert story.running() == []
        free(story, name)
        assert story.running() == [name]
        story.end(name)


def release_now(story: Story, name: str) -> None:
    now = story.clock.now()
    assert story.apply(Release(at=now, uid=0, keys=(key(name),), begin_at=now.wall - 100))


def update_now(story: Story, name: str) -> None:
    assert story.update(name, begin_at=story.clock.wall - 100)


def test_usage_of_departed_users_is_forgotten(story):
    """A band outlived its reason: two jobs whose time came together started in another order than after a
    restart, which forgets the bands of those who want nothing."""
    begin = story.clock.wall + 20 * DAY_S
    for uid, hours in ((1001, 100), (1002, 1)):
        story.submit(spec(gpus=4), uid=uid)
        story.clock.advance(hours * 3600.0)
        story.end(*story.running())
    story.submit(spec(gpus=4), spec(gpus=4), uid=1002)
    story.submit(spec(gpus=4), uid=1001)
    for _ in range(3):  # in the first of these rounds both are looked at
        story.end(*story.running())
    story.restart()
    story.submit(spec(gpus=4, begin_at=begin), uid=1001)
    story.submit(spec(gpus=4, begin_at=begin), uid=1002)
    story.clock.advance(begin - story.clock.wall)
    story.apply(Tick(at=story.clock.now()))
    assert len(story.running()) == 1


def test_backfill_starts_in_the_step_of_the_preemption():
    """What was promised changed after the round, and nobody looked again before the next event."""
    story = Story(policy=Policy(order="arrival", patience=0.0, lengths="limits", max_start_reservations=1))
    story.submit(spec(gpus=4, time_limit_s=1000, preemptible=True), spec(gpus=1, time_limit_s=100))
    story.submit(spec(gpus=2, preemptible=True), spec(gpus=1, preemptible=True))
    assert story.running() == ["1", "2"], "the third is promised what the fourth would need"
    story.submit(spec(gpus=4))
    assert story.running() == ["1", "2", "4"]


def test_job_of_known_length_backfills_past_unknown(story):
    """An unknown job closed the way for all after it that ask for as many GPUs. And once the known one had
    started, not that much was idle any more: the unknown one might have passed too, and did not."""
    story.submit(spec(gpus=2, name="long"))
    story.clock.advance(20_000)
    story.end("1")
    story.submit(spec(gpus=2, name="long"))
    story.submit(spec(gpus=4))
    story.submit(spec(gpus=6, time_limit_s=60))
    story.submit(spec(gpus=1))
    story.submit(spec(gpus=1, time_limit_s=9000))
    story.clock.advance(500)
    story.end("3")
    assert story.running() == ["2", "5", "6"]


def test_cpu_job_gets_start_reservation_behind_gpu_jobs():
    """All promises went to jobs with GPUs as long as some of them waited: it could wait for ever."""
    story = Story(policy=Policy(order="arrival", patience=0.0, lengths="limits"))
    wide = spec(gpus=4, cpus=1, time_limit_s=1000)
    story.submit(wide, spec(cpus=CPUS, time_limit_s=1000))
    story.submit(wide, wide, wide)
    story.submit(spec(cpus=1, time_limit_s=5000))
    assert story.running() == ["1"], "the last would delay the one without GPUs"
    story.end("1")
    assert story.running() == ["2"], "who has waited longest comes first"
