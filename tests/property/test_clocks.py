"""Two clocks: limits count boot time, begin times follow the wall clock, whatever happens to either."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from gflow.core.effects import Effect, Start, Stop
from gflow.core.engine import step
from gflow.core.events import Event, Tick
from gflow.core.ids import job_key
from gflow.core.invariants import check
from gflow.core.model import Job, JobState
from gflow.core.state.state import State, restore
from gflow.options.times import parse_time
from gflow.testing import FakeClock, MemoryStore, exited, spec, submit
from gflow.testing.clock import DAY_S


class Engine:
    """A machine with one CPU slot, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.state = State(cpus=1, memory_mib=1024)

    def take(self, event: Event) -> list[Effect]:
        effects = step(self.state, event)
        check(self.state)
        return effects

    def tick(self) -> list[tuple[str, int]]:
        """What a look at the clocks starts and stops, by job number."""
        effects = self.take(Tick(at=self.clock.now()))
        return [
            (type(effect).__name__.lower(), effect.key >> 20)
            for effect in effects
            if isinstance(effect, (Start, Stop))
        ]

    def submit(self, **fields) -> Job:
        self.take(submit(self.clock, spec(**fields)))
        return self.state.jobs[job_key(self.state.jobs.next_number - 1)]

    def restart(self) -> None:
        """The state rebuilt from its jobs alone."""
        old, self.state = self.state, State(cpus=1, memory_mib=1024)
        restore(self.state, list(old.jobs.values()), {}, [], old.jobs.next_number, self.clock.now())


@pytest.fixture
def engine() -> Engine:
    return Engine()


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("jump", [DAY_S, -DAY_S, 3600.0, -3600.0, 0.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_limit_does_not_care_for_the_wall_clock(engine, jump, restarted):
    engine.submit(time_limit_s=7200)
    engine.clock.advance(60)
    engine.clock.set_wall(jump)
    if restarted:
        engine.restart()
    assert engine.tick() == []
    engine.clock.advance(7139)
    assert engine.tick() == []
    assert engine.state.deadlines.next_limit() == engine.clock.boot + 1
    engine.clock.advance(1)
    assert engine.tick() == [("stop", 1)]
    assert engine.tick() == [], "once"


@pytest.mark.parametrize("asleep", [7200.0, 2 * DAY_S])
def test_a_limit_counts_a_suspended_machine(engine, asleep):
    engine.submit(time_limit_s=7200)
    engine.clock.advance(asleep)
    assert engine.tick() == [("stop", 1)]


def test_a_limit_is_counted_from_the_attempt_not_from_the_job(engine):
    job = engine.submit(time_limit_s=7200, requeue=True)
    engine.clock.advance(7000)
    engine.take(exited(engine.clock, job, 75))
    assert (job.state, job.attempt) == (JobState.RUNNING, 2)
    engine.clock.advance(7199)
    assert engine.tick() == []
    engine.clock.advance(1)
    assert engine.tick() == [("stop", 1)]


def test_reboot_restarts_boot_clock_and_limit(engine):
    job = engine.submit(time_limit_s=7200, requeue=True)
    engine.clock.advance(7000)
    engine.restart()
    engine.clock.reboot()
    assert engine.tick() == []
    engine.take(exited(engine.clock, job, None, problem="Reboot"))
    assert job.attempt == 2
    assert engine.state.deadlines.next_limit() == engine.clock.boot + 7200


@pytest.mark.parametrize(("ran", "expected"), [(36_000.0, JobState.RUNNING), (5.0, JobState.HOLD)])
def test_only_short_attempts_count_towards_a_loop_of_reboots(engine, ran, expected):
    job = engine.submit(requeue=True)
    for _ in range(5):
        engine.clock.advance(ran)
        engine.clock.reboot(off_s=1.0)
        engine.take(exited(engine.clock, job, None, problem="Reboot"))
    assert job.state is expected


# ---------------------------------------------------------------- run times and retries


@pytest.mark.parametrize("jump", [DAY_S, -DAY_S, 0.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_time_and_a_pause_do_not_care_for_the_wall_clock(engine, jump, restarted):
    job = engine.submit(max_retries=1, retry_delay_s=60)
    engine.clock.advance(5)
    engine.clock.set_wall(jump)
    if restarted:
        engine.restart()
    assert job.run_s(engine.clock.boot) == 5.0
    engine.take(exited(engine.clock, job, 1))
    engine.clock.set_wall(jump)
    if restarted:
        engine.restart()
    engine.clock.advance(59)
    assert engine.tick() == []
    engine.clock.advance(1)
    assert engine.tick() == [("start", 1)]


# ---------------------------------------------------------------- begin times


def test_a_begin_time_comes_with_the_wall_clock(engine):
    engine.submit(begin_at=engine.clock.wall + 3600)
    engine.clock.advance(3599)
    assert engine.tick() == []
    engine.clock.advance(1)
    assert engine.tick() == [("start", 1)]


def test_a_clock_set_forward_brings_the_begin_time_nearer(engine):
    engine.submit(begin_at=engine.clock.wall + DAY_S)
    engine.clock.set_wall(DAY_S)
    assert engine.tick() == [("start", 1)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_set_back_takes_the_begin_time_further(engine, restarted):
    due = engine.clock.wall + 3600
    engine.submit(begin_at=due)
    engine.clock.set_wall(-DAY_S)
    if restarted:
        engine.restart()
    engine.clock.advance(3600)
    assert engine.tick() == []
    assert engine.state.deadlines.next_begin() == due
    engine.clock.advance(DAY_S)
    assert engine.tick() == [("start", 1)]


def test_a_begin_time_counts_a_suspended_machine(engine):
    engine.submit(begin_at=engine.clock.wall + 3600)
    engine.clock.advance(2 * DAY_S)
    assert engine.tick() == [("start", 1)]


def test_due_job_waits_again_when_clock_is_set_back(engine):
    first = engine.submit()
    second = engine.submit(begin_at=engine.clock.wall + 60)
    third = engine.submit(begin_at=engine.clock.wall - DAY_S * 2)
    engine.clock.advance(61)
    assert engine.tick() == [], "no room"
    engine.clock.set_wall(-DAY_S)
    engine.take(exited(engine.clock, first))
    assert third.state is JobState.RUNNING, "its time stays past"
    assert second.key in engine.state.deadlines.later
    assert engine.state.deadlines.next_begin() == second.spec.begin_at
    engine.take(exited(engine.clock, third))
    engine.clock.advance(DAY_S)
    assert engine.tick() == [("start", 2)]


# ---------------------------------------------------------------- what people write


@pytest.fixture
def berlin(monkeypatch):
    """Europe/Berlin, written out: a machine without tzdata would take the name for UTC."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        # An ordinary day (UTC+2): the next time the clock shows it, today or tomorrow.
        ("2026-06-10T10:00", "12:01", "2026-06-10T10:01"),
        ("2026-06-10T10:00", "12:00", "2026-06-11T10:00"),
        ("2026-06-10T10:00", "11:59", "2026-06-11T09:59"),
        ("2026-06-10T22:30", "00:15", "2026-06-11T22:15"),
        ("2026-06-10T21:30", "00:15", "2026-06-10T22:15"),
        # 29 March 2026: at 2:00 the clock goes to 3:00.
        ("2026-03-28T23:30", "01:30", "2026-03-29T00:30"),
        ("2026-03-28T23:30", "03:30", "2026-03-29T01:30"),
        ("2026-03-28T23:30", "02:30", "2026-03-29T01:30"),  # there is none: the clock shows 3:30 then
        ("2026-03-28T23:30", "12:00", "2026-03-29T10:00"),
        ("2026-03-28T12:00", "13:00", "2026-03-29T11:00"),  # 23 hours on
        ("2026-03-28T12:00", "2026-03-29", "2026-03-28T23:00"),
        ("2026-03-28T12:00", "2026-03-30", "2026-03-29T22:00"),
        ("2026-03-28T12:00", "2026-03-29T12:00", "2026-03-29T10:00"),
        ("2026-03-28T12:00", "2026-03-29T12:00Z", "2026-03-29T12:00"),
        ("2026-03-28T12:00", "2026-03-29T12:00+05:30", "2026-03-29T06:30"),
        ("2026-03-28T12:00", "now+1d", "2026-03-29T12:00"),  # a day is 24 hours, always
        # 25 October 2026: at 3:00 the clock goes back to 2:00.
        ("2026-10-24T22:30", "01:30", "2026-10-24T23:30"),
        ("2026-10-24T22:30", "02:30", "2026-10-25T00:30"),  # twice: the first
        ("2026-10-24T22:30", "03:30", "2026-10-25T02:30"),
        ("2026-10-24T22:30", "12:00", "2026-10-25T11:00"),
        ("2026-10-24T13:00", "15:00", "2026-10-25T14:00"),  # 25 hours on
        ("2026-10-24T13:00", "2026-10-25", "2026-10-24T22:00"),
        ("2026-10-24T13:00", "2026-10-26", "2026-10-25T23:00"),
        ("2026-10-24T13:00", "2026-10-25T12:00", "2026-10-25T11:00"),
        ("2026-10-24T13:00", "now+1d", "2026-10-25T13:00"),
    ],
)
def test_times_around_a_change_of_the_clock(berlin, now, text, expected):
    assert parse_time(text, at(now)) == at(expected).timestamp()
    # A request from another time zone means the same instant.
    assert parse_time(text, at(now).astimezone()) == at(expected).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", 0),
        ("now+0", 0),
        ("+30", 1800),
        ("now+30", 1800),
        ("now+45s", 45),
        ("now+5m", 300),
        ("+2h", 7200),
        ("now+3d", 3 * 86400),
        ("now+1w", 7 * 86400),
        (" now+1h ", 3600),
    ],
)
def test_times_from_now(text, seconds):
    now = at("2026-03-28T12:00")
    assert parse_time(text, now) == now.timestamp() + seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "25:00",
        "12:60",
        "now+",
        "+",
        "now+-5",
        "now+1y",
        "now-5",
        "+1.5h",
        "+٣",
        "2026-13-01",
        "2026-12",
    ],
)
def test_invalid_times_are_refused(text):
    assert parse_time(text, at("2026-03-28T12:00")) is None


@pytest.mark.usefixtures("berlin")
def test_a_time_that_comes_twice_is_the_next_of_the_two() -> None:
    """On 25 October 2026 Berlin has 02:30 twice; at a quarter to three of the first, the second is next."""
    first = datetime(2026, 10, 25, 0, 45, tzinfo=UTC).astimezone()
    assert parse_time("02:30", first) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC).timestamp()


def test_unobserved_end_is_not_a_success() -> None:
    clock, state = FakeClock(), State(cpus=1, memory_mib=1000)
    step(state, submit(clock))
    job = state.jobs[job_key(1)]
    step(state, exited(clock, job, code=None))
    assert (job.state, str(job.reason)) == (JobState.FAILED, "Lost")
