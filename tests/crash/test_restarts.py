"""The daemon is killed and comes back, forty times, under jobs that all end in their own way."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from gflow.targets.local.shim_pool import IDLE_MAX
from tests.harness import Box, wait_until
from tests.process.test_local_target import control_groups

KILLS = 40
JOBS = 200
SIGNALS = (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1)


@pytest.mark.slow
def test_two_hundred_jobs_under_forty_kills(box: Box) -> None:
    dice = random.Random(20261116)
    leases = box.root / "leases"
    flags = ("--simulate-gpus", "4x80G", "--cpus", "6")
    box.env |= {"GFLOW_LEASE_DIR": str(leases)}
    box.up(*flags)
    box.finished(box.submit("true"))
    quiet_files = open_files(box)
    expected = {}
    for number in range(JOBS):
        how = dice.choice(SIGNALS) if dice.random() < 0.2 else dice.randrange(120)
        end = f"kill -{how:d} $$" if isinstance(how, signal.Signals) else f"exit {how}"
        line = f"echo {number} >> {box.work}/starts; sleep {dice.uniform(0, 1.2):.3f}; {end}"
        request = box.job_request(["sh", "-c", line], gpus=dice.choice((0, 0, 1, 2)))
        status, answer = box.api("POST", "/jobs", {"token": f"job-{number}-of-the-test", "jobs": [request]})
        assert status == 201, answer
        expected[answer["jobs"][0]["id"]] = how
    for _ in range(KILLS):
        time.sleep(dice.uniform(0.0, 0.4))  # the moment itself is what is random
        box.kill9()
        box.up(wait=dice.random() < 0.7)  # sometimes killed again while it starts
    wait_until(box.serves)
    for job, how in expected.items():
        final = box.finished(job, 120)
        ended = final["signal"] if isinstance(how, signal.Signals) else final["exit_code"]
        assert ended == how, (how, final)
    starts = Counter((box.work / "starts").read_text().split())
    assert starts == Counter(str(number) for number in range(JOBS)), "each exactly once"

    wait_until(lambda: not list((box.data / "run").iterdir()), what="run records to be forgotten")
    most = quiet_files + sum(IDLE_MAX.values())  # a channel to each shim that waits for work
    wait_until(lambda: open_files(box) <= most, what="the daemon to close what it opened")
    wait_until(lambda: not zombies(box), what="zombies to be buried")
    assert len(list(leases.iterdir())) == 4
    for lease in leases.iterdir():
        with lease.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    wait_until(lambda: not left_groups(box), what="control groups to be dropped")
    box.down()
    wait_until(lambda: not box.processes(), what="the last shim to leave")
    wait_until(lambda: not control_groups(box), what="the last control group to go")


def open_files(box: Box) -> int:
    assert box.daemon is not None
    return len(os.listdir(f"/proc/{box.daemon.pid}/fd"))


def left_groups(box: Box) -> list[Path]:
    """Control groups of runs, or of shims that live no more. (A plain shim has one of its own.)"""
    groups = [group for base in control_groups(box) for group in base.iterdir() if group.is_dir()]
    shims = [f"shim-{pid}" for pid in box.processes()]
    return [group for group in groups if group.name.rpartition("-")[0] not in shims]


def zombies(box: Box) -> list[int]:
    """Zombies: children of the daemon, the zygote or a shim."""
    family = set(box.processes())
    dead = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state == "Z" and int(parent) in family:
            dead.append(int(entry))
    return dead
