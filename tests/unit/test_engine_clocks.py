"""Setting the wall clock changes no duration: run times, shares, estimates, pauses, waits."""

from __future__ import annotations

from contextlib import closing

import pytest

from gflow.core.effects import Ran
from gflow.core.engine import step
from gflow.core.events import Exited
from gflow.core.forecast.wait_report import wait_report
from gflow.core.model import Job, Moment
from gflow.core.queries.usage_report import Question, Statistics
from gflow.core.state.runtime_estimates import length_of
from gflow.core.state.state import next_boot_deadline, next_wall_deadline
from gflow.daemon.loop.stored_state import gather
from gflow.store.port import Changes
from gflow.store.reader import Reader
from gflow.store.sqlite import SqliteStore
from gflow.store.statistics import statistics
from gflow.text.job_page import job_page
from gflow.text.queue import COLUMNS
from gflow.wire.answers.jobs import job_view

from .builders import NOON, UIDS
from .machine import Machine, gpu, key_of

DAY = 86400.0
JUMPS = pytest.mark.parametrize("jump", [DAY, -DAY], ids=["forward", "back"])


def machine_of(gpus: int = 1) -> Machine:
    return Machine(*map(gpu, range(gpus)))


def set_clock(machine: Machine, jump: float) -> None:
    machine.now = Moment(machine.now.wall + jump, machine.now.boot)
    machine.passes(0)


def run_once(machine: Machine, jump: float, seconds: float = 5.0, code: int = 0, **asked) -> Job:
    """A job during which the clock is set."""
    number = machine.submit(gpus=1, **asked)
    machine.passes(seconds - 1)
    set_clock(machine, jump)
    machine.passes(1)
    machine.ends(number, code=code)
    return machine[number]


# ---------------------------------------------------------------- run times


@JUMPS
def test_run_time_ignores_wall_clock_changes(jump):
    machine = machine_of()
    job = run_once(machine, jump)
    assert (job.ran_s, length_of(job), job_view(job).ran_s) == (5.0, 5.0, 5.0)
    assert COLUMNS["TIME"](job, None, machine.now) == "00:00:05"
    assert "(ran 00:00:05)" in job_page(job, None, machine.now, "")


@JUMPS
def test_time_column_of_a_running_job_does_not_jump(jump):
    machine = machine_of()
    machine.submit(gpus=1)
    machine.passes(5)
    set_clock(machine, jump)
    assert COLUMNS["TIME"](machine[1], None, machine.now) == "00:00:05"
    assert "00:00:05" in job_page(machine[1], None, machine.now, "")


@JUMPS
def test_an_earlier_attempt_has_its_own_run_time(jump):
    machine = machine_of()
    machine.submit(gpus=1, max_retries=1)
    machine.passes(5)
    set_clock(machine, jump)
    end = Exited(at=machine.now, key=key_of(1), attempt=1, code=1)
    (ran,) = [effect for effect in step(machine.state, end) if isinstance(effect, Ran)]
    assert ran.ran_s == 5.0


@pytest.mark.parametrize(("ago_s", "ran_s"), [(0.0, 5.0), (2.0, 3.0), (60.0, 0.0)])
def test_job_that_ended_without_a_daemon_ends_then_and_not_before_its_start(ago_s, ran_s):
    machine = machine_of()
    machine.submit(gpus=1)
    machine.passes(5)
    job = machine[1]
    step(machine.state, Exited(at=machine.now, key=key_of(1), attempt=1, code=0, ended_ago_s=ago_s))
    assert (job.ran_s, job.finished_at) == (ran_s, job.started_at + ran_s)


@JUMPS
def test_gpu_hours_in_statistics_are_those_of_the_boot_clock(jump, tmp_path):
    machine, store = machine_of(8), SqliteStore(tmp_path / "gflow.db")

    def happens(event) -> None:
        changes = Changes()
        gather(changes, step(machine.state, event), None, "test", machine.now)
        store.commit(changes)

    machine.submit(gpus=8, max_retries=1)
    store.commit(Changes(jobs={key_of(1): machine[1]}))
    machine.passes(5)
    set_clock(machine, jump)
    happens(Exited(at=machine.now, key=key_of(1), attempt=1, code=1))
    machine.now = Moment(machine.now.wall + 3, machine.now.boot + 3)
    running = counted(store, machine).total
    assert (running.gpu_s, running.run_s) == (8 * (5 + 3), 0)
    machine.now = Moment(machine.now.wall + jump, machine.now.boot)
    happens(Exited(at=machine.now, key=key_of(1), attempt=2, code=0))
    found = counted(store, machine)
    assert (found.total.gpu_s, found.total.run_s, found.top[0].run_s) == (8 * (5 + 3), 8, 8)
    assert counted(store, machine, since=NOON - 3 * DAY).total.gpu_s == 8 * (5 + 3)
    store.close()


def counted(store: SqliteStore, machine: Machine, since: float = 0.0) -> Statistics:
    with closing(Reader(store.path)) as reader:
        return statistics(reader, Question(now=machine.now.wall, boot=machine.now.boot, since=since))


# ---------------------------------------------------------------- what the scheduler goes by


@JUMPS
def test_fair_share_counts_boot_clock_time(jump):
    machine = machine_of()
    run_once(machine, jump)
    assert machine.state.accounting.fair_share.use(UIDS["ann"], machine.now.boot) == pytest.approx(
        5.0, rel=1e-3
    )


@JUMPS
def test_estimates_are_of_what_jobs_took(jump):
    machine = machine_of()
    run_once(machine, jump, seconds=100.0, name="train")
    machine.submit(gpus=1, name="train")
    assert machine.state.running.batches[key_of(2)].length == 100.0
    set_clock(machine, jump)
    assert machine.state.running.batches[key_of(2)].length == 100.0, "one that runs has not outlasted it"
    assert machine.state.running.expected_end(machine[2], machine.now.boot) == machine.now.boot + 100.0


@JUMPS
def test_expected_start_keeps_its_distance_from_now(jump):
    machine = machine_of()
    machine.submit(gpus=1, time_limit_s=600)
    machine.submit(gpus=1, time_limit_s=60)
    before = wait_report(machine.state, machine[2], machine.now).start
    set_clock(machine, jump)
    after = wait_report(machine.state, machine[2], machine.now).start
    assert after.expected - before.expected == jump
    assert (after.expected, after.earliest) == (machine.now.wall + 600, machine.now.wall)


@JUMPS
def test_wait_time_ignores_wall_clock_changes(jump):
    machine = machine_of()
    machine.submit(gpus=1, time_limit_s=600)
    machine.submit(gpus=1, time_limit_s=60)
    before = wait_report(machine.state, machine[2], machine.now).promised_at - machine.now.wall
    set_clock(machine, jump)
    assert machine.state.start_reservations.entries == []
    assert wait_report(machine.state, machine[2], machine.now).promised_at - machine.now.wall == before


@JUMPS
def test_overflow_patience_ignores_wall_clock_changes(jump):
    machine = machine_of()
    machine.submit(gpus=1, time_limit_s=50)
    machine.submit(gpus=1, overflow="slurm", overflow_after_s=100)
    set_clock(machine, jump)
    assert machine[2].target == "local"
    assert wait_report(machine.state, machine[2], machine.now).overflows_at == machine.now.wall + 100
    machine.passes(100)
    assert machine[2].target == "slurm"


# ---------------------------------------------------------------- retries


@JUMPS
def test_a_pause_before_a_retry_is_as_long_as_it_was_to_be(jump):
    machine = machine_of()
    machine.submit(gpus=1, max_retries=1, retry_delay_s=3)
    machine.ends(1, code=1)
    assert machine.stands(1) == "Queued (RetryDelay)"
    set_clock(machine, jump)
    assert (next_boot_deadline(machine.state), next_wall_deadline(machine.state)) == (
        machine.now.boot + 3,
        None,
    )
    assert wait_report(machine.state, machine[1], machine.now).start.expected == machine.now.wall + 3
    machine.passes(2)
    assert machine.running() == []
    machine.passes(1)
    assert machine.running() == ["1"]


def test_retry_waits_for_delay_and_begin_time():
    machine = machine_of()
    begin = machine.now.wall + 5
    machine.submit(gpus=1, max_retries=1, retry_delay_s=60, begin_at=begin)
    machine.passes(5)
    machine.ends(1, code=1)
    set_clock(machine, -DAY)
    machine.passes(60)
    assert (machine.running(), next_wall_deadline(machine.state)) == ([], begin)
    machine.passes(DAY)
    assert machine.running() == ["1"]
