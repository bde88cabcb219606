"""`gflow simulate` matches the daemon: two hundred jobs start in the same order."""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from gflow.core.policy import USUAL, Policy
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry
from tests.harness import Box, wait_until

GPUS, JOBS = 8, 200


def workload(begin: float, *, with_limits: bool) -> list[Entry]:
    """More work than GPUs: jobs backfill past wide ones until these have a start reservation."""
    dice = random.Random(4)
    made, now = [], begin
    for _ in range(JOBS):
        now += dice.expovariate(1 / 300)
        minutes = dice.randint(1, 110)
        gpus = dice.choice((1, 1, 1, 2, 2, 4, 8))
        name = f"work-{dice.randint(1, 9)}"
        made.append(Entry(now, minutes * 60.0 - 1, gpus, "ann", name, minutes * 60 if with_limits else 0))
    return made


class ReplayEvent(NamedTuple):
    """Something that happens, when, and to which job (0: only time passes)."""

    what: str
    number: int
    at: float


class RecordingReplay(Replay):
    """Notes what happens in which order, and which jobs had a start reservation."""

    def __init__(self, entries: list[Entry], policy: Policy) -> None:
        super().__init__(entries, GPUS, policy)
        self.events: list[ReplayEvent] = []
        self.reserved: set[int] = set()
        self._known, self._were = 0, set[int]()

    def _apply(self, effects, now):
        running = {key >> 20 for key in self.state.running}
        if self.state.jobs.next_number - 1 > self._known:
            self._known += 1
            self.events.append(ReplayEvent("submit", self._known, now))
        elif ended := self._were - running:
            self.events.append(ReplayEvent("end", ended.pop(), now))
        else:
            self.events.append(ReplayEvent("tick", 0, now))
        self._were = running
        self.reserved |= {reservation.key >> 20 for reservation in self.state.start_reservations.entries}
        super()._apply(effects, now)


class Clock:
    """The daemon's: it stands still until the test sets it. Both show the same, as after a first start."""

    def __init__(self, path: Path, begin: float) -> None:
        self._path = path
        self._ticks = 0
        self.set(begin)

    def set(self, wall: float) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{wall!r} {wall!r} {self._ticks}")
        new.replace(self._path)

    def tick(self, wall: float) -> None:
        """As if a timer ran out then."""
        self._ticks += 1
        self.set(wall)
        done = self._path.with_suffix(".done")
        wait_until(lambda: done.exists() and done.read_text() == str(self._ticks))


@pytest.mark.parametrize("with_limits", [True, False])
def test_two_hundred_jobs_start_in_the_simulators_order(with_limits: bool, box: Box, tmp_path: Path) -> None:
    """With the daemon's own policy. Its clock is set by the test: a job ends when the simulated one did."""
    begin = float(int(time.time()))
    entries = workload(begin, with_limits=with_limits)
    replay = RecordingReplay(entries, USUAL)
    replay.run()
    order = [number for _, number in sorted((start, n) for n, start in enumerate(replay.starts, 1))]
    assert order != sorted(order), "no job is passed"
    assert replay.reserved, "no job has a start reservation"
    clock = Clock(tmp_path / "clock", begin)
    box.program = [sys.executable, str(Path(__file__).with_name("manual_clock_daemon.py"))]
    box.up("--simulate-gpus", f"{GPUS}x80G", env={"MANUAL_CLOCK": str(tmp_path / "clock")})
    for event in replay.events:
        if event.what == "tick":
            clock.tick(event.at)
        else:
            clock.set(event.at)
            play(box, tmp_path / f"gate-{event.number}", event, entries[event.number - 1])
    said = [box.job(number)["started_at"] for number in range(1, JOBS + 1)]
    started = [datetime.fromisoformat(text).timestamp() for text in said]
    assert [number for _, number in sorted((at, n) for n, at in enumerate(started, 1))] == order
    assert started == pytest.approx(replay.starts, abs=0.01), "and at the same times"


def play(box: Box, gate: Path, event: ReplayEvent, entry: Entry) -> None:
    """A job is submitted, or let go."""
    if event.what == "submit":
        os.mkfifo(gate)
        options = {"gpus": entry.gpus, "name": entry.name} | ({"time": entry.limit} if entry.limit else {})
        body = {
            "token": f"a-token-for-{event.number}",
            "jobs": [box.job_request(["cat", str(gate)], **options)],
        }
        status, answer = box.api("POST", "/jobs", body)
        assert status == 201, answer
        assert answer["jobs"][0]["id"] == event.number
    else:
        wait_until(lambda: box.job(event.number)["state"] == "Running")
        gate.open("w").close()  # when the job has come to read it
        assert box.finished(event.number)["state"] == "Finished"
