"""Who could wait for ever because of others who cannot start: each as the shortest story that shows it."""

from __future__ import annotations

import pytest

from gflow.core.events import Reserve, SetQuota, Tick
from gflow.core.state.quotas import Limits
from gflow.testing import spec
from gflow.testing.clock import DAY_S
from tests.property.test_regressions import Story, key

NARROW = spec(gpus=1, time_limit_s=3600, name="narrow")
WIDE = spec(gpus=6, time_limit_s=600, name="wide")


@pytest.fixture
def story() -> Story:
    """All GPUs are busy."""
    story = Story()
    for _ in range(6):
        story.submit(NARROW)
        story.clock.advance(1)
    return story


def crowd(story: Story) -> None:
    """For ten hours there is always somebody who would take the next GPU that falls free."""
    for _ in range(60):
        story.submit(NARROW)
        story.clock.advance(600)
        if narrow := [name for name in story.running() if story.state.jobs[key(name)].spec is NARROW]:
            story.end(min(narrow, key=lambda name: story.state.jobs[key(name)].started_at or 0.0))


def waits(story: Story, name: str) -> bool:
    return any(job.spec.name == name and job in story.state.ready for job in story.state.jobs.values())


def blind(story: Story) -> None:
    """The ledger knows nothing of quotas and reservations."""
    story.ledger.check = lambda *_: None  # type: ignore[method-assign]


def test_wide_job_starts_in_a_crowd(story):
    story.submit(WIDE)
    crowd(story)
    assert not waits(story, "wide")


def test_preemptible_jobs_do_not_hold_all_start_reservations(story):
    """Everybody else passed them, and they kept what was promised to them."""
    for name in "ab":
        story.submit(spec(gpus=6, time_limit_s=600, name=name, preemptible=True))
    story.submit(WIDE)
    crowd(story)
    assert not waits(story, "wide")


def test_jobs_over_quota_do_not_block_others(story):
    """The oldest twenty were asked, and none of them could have started."""
    none = Limits(max_running_jobs=0)
    story.apply(SetQuota(at=story.clock.now(), uid=0, scope="project", name="ann", limits=none))
    story.submit(*[spec(gpus=1, time_limit_s=60, name=f"ann{n}", project="ann") for n in range(20)], uid=1002)
    story.submit(WIDE)
    blind(story)
    crowd(story)
    assert not waits(story, "wide")


def test_cpu_start_reservation_does_not_block_gpu_reservations():
    """Whoever came late took a GPU of somebody who had waited long enough: nobody looked for such again."""
    story = Story()
    story.submit(spec(gpus=5, time_limit_s=36_000), spec(cpus=1, time_limit_s=36_000))
    story.submit(spec(cpus=6, time_limit_s=60), spec(gpus=6, time_limit_s=6000))
    story.clock.advance(500)
    story.apply(Tick(at=story.clock.now()))
    story.submit(spec(gpus=6, time_limit_s=60_000))
    story.clock.advance(20_000)
    story.submit(spec(gpus=1, time_limit_s=72_000, name="late"))
    assert waits(story, "late")


def test_job_that_cannot_preempt_does_not_block_preemption():
    """The first twenty in line were asked, and none of them wanted a GPU."""
    story = Story()
    story.submit(spec(gpus=6, time_limit_s=3600, preemptible=True), spec(cpus=6, time_limit_s=3600))
    story.submit(*[spec(cpus=1, time_limit_s=60, name=f"c{n}") for n in range(20)])
    story.submit(spec(gpus=1, time_limit_s=3600, cpus=0))
    assert story.state.jobs[key("1")].stopping is not None


def test_reserved_gpu_does_not_prevent_preemption():
    story = Story()
    blind(story)
    now = story.clock.wall
    story.submit(spec(gpus=5, time_limit_s=3600, preemptible=True))
    story.apply(Reserve(at=story.clock.now(), uid=0, user="zoe", gpus=(5,), start=now, end=now + DAY_S))
    story.submit(spec(gpus=1, time_limit_s=3600))
    assert story.state.jobs[key("1")].stopping is not None
