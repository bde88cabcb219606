"""Alarms on real clocks."""

import asyncio
import os
import time

import pytest

from gflow.daemon.loop.timers import Alarm

CLOCKS = pytest.mark.parametrize("clock", [time.CLOCK_BOOTTIME, time.CLOCK_REALTIME], ids=["boot", "wall"])
SOON = 0.02
FAR = 3600.0


class Bell:
    """An alarm, and when it rang."""

    def __init__(self, clock):
        self.clock = clock
        self.rang = asyncio.Event()
        self.times = []
        self.alarm = Alarm(clock, self.ring)

    def ring(self):
        self.times.append(self.now())
        self.rang.set()

    def now(self):
        return time.clock_gettime(self.clock)

    async def heard(self):
        await asyncio.wait_for(self.rang.wait(), 5)
        self.rang.clear()
        return self.times[-1]

    async def silent(self):
        await asyncio.sleep(2 * SOON)
        return not self.times


def play(clock, scene):
    """Run a scene with a bell of this clock."""

    async def run():
        bell = Bell(clock)
        try:
            await scene(bell)
        finally:
            bell.alarm.close()

    asyncio.run(run())


@CLOCKS
def test_alarm_rings_at_its_time(clock):
    async def scene(bell):
        due = bell.now() + SOON
        bell.alarm.set(due)
        assert await bell.heard() >= due - 1e-6

    play(clock, scene)


@CLOCKS
@pytest.mark.parametrize("due", [0.0, 1.0, -5.0, 1e-12], ids=str)
def test_alarm_in_the_past_rings_at_once(clock, due):
    async def scene(bell):
        bell.alarm.set(due)
        await bell.heard()

    play(clock, scene)


@CLOCKS
def test_timer_fires_once_per_setting(clock):
    async def scene(bell):
        due = bell.now()
        for rings in (1, 2):
            bell.alarm.set(due)
            await bell.heard()
            await asyncio.sleep(SOON)
            assert len(bell.times) == rings

    play(clock, scene)


@CLOCKS
def test_alarm_set_to_none_is_silent(clock):
    async def scene(bell):
        bell.alarm.set(bell.now() + SOON)
        bell.alarm.set(None)
        assert await bell.silent()

    play(clock, scene)


@CLOCKS
def test_a_later_time_and_then_an_earlier_one_count(clock):
    async def scene(bell):
        bell.alarm.set(bell.now() + SOON)
        bell.alarm.set(bell.now() + FAR)
        assert await bell.silent()
        bell.alarm.set(bell.now() + SOON)
        await bell.heard()

    play(clock, scene)


def test_a_new_alarm_is_silent():
    async def scene(bell):
        assert await bell.silent()

    play(time.CLOCK_BOOTTIME, scene)


def test_two_alarms_do_not_disturb_each_other():
    async def scene(bell):
        other = Bell(time.CLOCK_REALTIME)
        other.alarm.set(other.now() + FAR)
        bell.alarm.set(bell.now())
        await bell.heard()
        assert not other.times
        other.alarm.close()

    play(time.CLOCK_BOOTTIME, scene)


def test_the_end_of_the_calendar_can_be_waited_for():
    async def scene(bell):
        bell.alarm.set(253_402_300_800.0)
        assert await bell.silent()

    play(time.CLOCK_REALTIME, scene)


def test_a_closed_alarm_leaves_no_file_open():
    before = len(os.listdir("/proc/self/fd"))

    async def scene(bell):
        bell.alarm.set(bell.now() + FAR)

    play(time.CLOCK_BOOTTIME, scene)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unknown_clock_is_an_error():
    async def run():
        with pytest.raises(OSError, match="timerfd_create"):
            Alarm(99, print)

    asyncio.run(run())
