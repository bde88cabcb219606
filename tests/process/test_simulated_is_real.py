"""What `gflow simulate` says is what the daemon does: two hundred jobs start in the same order."""

from __future__ import annotations

import os
import random
from pathlib import Path

from gflow.core.policy import Policy
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry
from tests.harness import Box, wait_until

GPUS, JOBS = 8, 200


def workload() -> list[Entry]:
    """More work than the machine has GPUs for, of jobs whose lengths are known by their limits."""
    dice = random.Random(4)
    made, now = [], 0.0
    for place in range(JOBS):
        now += dice.expovariate(1 / 300)
        minutes = dice.randint(1, 110)
        gpus = dice.choice((1, 1, 1, 2, 2, 4, 8))
        made.append(Entry(now, minutes * 60.0 - 1, gpus, "ann", f"work-{place}", minutes * 60))
    return made


class Told(Replay):
    """Notes what happens in which order."""

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__(entries, GPUS, Policy(patience=-1.0))
        self.story: list[tuple[str, int]] = []

    def _take(self, effects, now):
        before = {place for place, start in enumerate(self.starts) if start >= 0}
        known, gone = self.state.next_number - 1, {number for what, number in self.story if what == "end"}
        submitted = sum(what == "submit" for what, _ in self.story)
        if known > submitted:
            self.story.append(("submit", known))
        else:
            running = {key >> 20 for key in self.state.running}
            started = {place + 1 for place in before}
            self.story += [("end", number) for number in sorted(started - running - gone)]
        super()._take(effects, now)


def test_two_hundred_jobs_start_in_the_simulators_order(box: Box, tmp_path: Path) -> None:
    """Time is told by the test: a job ends when the simulated one did, between the same two other events."""
    entries = workload()
    told = Told(entries)
    told.run()
    order = [number for _, number in sorted((start, place + 1) for place, start in enumerate(told.starts))]
    assert order != sorted(order), "somebody passes somebody"
    path = box.home / ".config/gflow/gflow.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[policy]\nprotect = false\n")
    box.up("--simulate-gpus", f"{GPUS}x80G")
    for what, number in told.story:
        gate, entry = tmp_path / f"gate-{number}", entries[number - 1]
        if what == "submit":
            os.mkfifo(gate)
            options = {"gpus": entry.gpus, "time": entry.limit, "name": entry.name}
            body = {
                "token": f"a-token-for-{number}",
                "jobs": [box.job_request(["cat", str(gate)], **options)],
            }
            status, answer = box.api("POST", "/jobs", body)
            assert status == 201, answer
            assert answer["jobs"][0]["id"] == number
        else:
            wait_until(lambda number=number: box.job(number)["state"] == "Running")
            gate.open("w").close()  # when the job has come to read it
            assert box.finished(number)["state"] == "Finished"
    started = sorted((box.job(number)["started_at"], number) for number in range(1, JOBS + 1))
    assert [number for _, number in started] == order
