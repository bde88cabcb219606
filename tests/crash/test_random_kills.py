"""kill -9 at random moments under load, again and again."""

from __future__ import annotations

import random
import time

import pytest

from tests.crash.load import Client, judge
from tests.harness import Box, wait_until

KILLS = 50


@pytest.mark.slow
def test_killed_at_random_moments_under_load(box: Box) -> None:
    dice = random.Random(20261115)
    box.up("--simulate-gpus", "4x80G", "--cpus", "6")
    clients = [Client(box, number, seed=number) for number in range(4)]
    for client in clients:
        client.start()
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.0, 0.6))  # the moment itself is what is random
        box.kill9()
        box.up(wait=dice.random() < 0.7)  # sometimes killed again while it starts
    box.up() if box.daemon and box.daemon.poll() is not None else wait_until(box.serves)
    for client in clients:
        client.stopped.set()
    for client in clients:
        client.join(60)
    verdict = judge(box, clients)
    print(f"{KILLS} kills, {verdict.acknowledged} acknowledged jobs")
    assert verdict.acknowledged > 200
    assert verdict.clean, verdict
    wait_until(lambda: not list((box.data / "run").iterdir()), what="run records to be forgotten")
