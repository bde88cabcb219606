"""Progress reports: the time to the end of jobs that report only their steps."""

from __future__ import annotations

import pytest

from gflow.core.events import Progressed
from gflow.core.model import JobProgress

from .machine import Machine, gpu, key_of

STEPS = 100


def reports(machine, after_s, step, left_s=None, *, only=None, steps=STEPS):
    machine.passes(after_s)
    progress = JobProgress(at=machine.now.wall, step=step, steps=steps, left_s=left_s)
    machine.hears(Progressed, key=key_of(1), attempt=machine[1].attempt, progress=progress, only=only)


@pytest.mark.parametrize(
    ("said", "left_s"),
    [
        ([(1, 10)], None),  # the job may have begun at step 9
        ([(1, 10), (5, 20)], 40),
        ([(1, 10), (5, 20), (5, 30)], 35),
        ([(1, 10), (5, 20), (10, 30)], 30 + 0.2 * (70 - 30)),  # slower: smoothed
        ([(1, 10), (5, 20), (3, 20)], 37),  # the same step again
        ([(1, 10), (5, 20), (5, 5)], None),  # another beginning
        ([(1, 10), (5, 20), (3, 100)], 40 - 3 - 0.2 * 37),
        ([(1, 10), (5, 20, 7.0)], 7),  # the job knows better
        ([(1, 10), (0, 20)], None),
    ],
)
def test_time_to_the_end_follows_from_the_pace(said, left_s):
    machine = Machine(gpu(0), careful=False)
    machine.submit(gpus=1)
    for report in said:
        reports(machine, *report)
    found = machine[1].left_s(machine.now.wall)
    assert found == (None if left_s is None else pytest.approx(left_s))


def test_reports_without_a_step_do_not_change_the_pace():
    machine = Machine(gpu(0), careful=False)
    machine.submit(gpus=1)
    reports(machine, 1, 10)
    for _ in range(20):
        step = machine[1].progress_report.step
        reports(machine, 4, 0, only=("loss",))
        reports(machine, 1, step + 1, only=("step",))
    assert machine[1].left_s(machine.now.wall) == pytest.approx(70 * 5)


def test_no_time_to_the_end_without_the_number_of_steps_or_from_an_earlier_attempt():
    machine = Machine(gpu(0), careful=False)
    machine.submit(gpus=1, max_retries=1)
    for step in (1, 2):
        reports(machine, 1, step, steps=0)
    assert machine[1].left_s(machine.now.wall) is None
    for step in (3, 4):
        reports(machine, 1, step)
    assert machine[1].left_s(machine.now.wall) is not None
    machine.passes(1)
    machine.ends(1, 1)
    machine.passes(3600)
    assert machine[1].attempt == 2
    reports(machine, 1, 5)
    assert machine[1].left_s(machine.now.wall) is None
