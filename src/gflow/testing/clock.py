"""A clock that advances only when a test says so."""

from __future__ import annotations

from gflow.core.model import Moment

DAY_S = 86400.0


class FakeClock:
    """Both clocks of a machine: `wall` can be set, `boot` only advances."""

    def __init__(self, wall: float = 1_780_000_000.0, boot: float = 1000.0) -> None:
        self.wall = wall
        self.boot = boot

    def now(self) -> Moment:
        return Moment(wall=self.wall, boot=self.boot)

    def advance(self, seconds: float) -> Moment:
        """Advance both clocks. Suspend is the same: both clocks count it."""
        self.wall += seconds
        self.boot += seconds
        return self.now()

    def set_wall(self, by: float) -> Moment:
        """Set the wall clock forwards or back; no time passes."""
        self.wall += by
        return self.now()

    def reboot(self, off_s: float = 60.0) -> Moment:
        """Simulate a reboot: to the engine, both clocks continue (see `daemon.loop.timers`)."""
        return self.advance(off_s)
