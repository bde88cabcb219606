"""No process of a job lives when its state changes: swarms, daemonised processes, processes that fork again.

A swarm (swarm.c) has the job's GPU; the next job for that GPU starts the instant it is given on, and its
first act is to look whether a process of the swarm is left: by a lock that all members hold and by
their arguments, which stay when a member wipes its environment and closes its files.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from gflow.targets.local.shim.process_tree import children
from tests.harness import Box, wait_until

SOURCE = Path(__file__).with_name("swarm.c")
LOOK = """
flock --exclusive --nonblock {file} true && echo unlocked
pgrep --full '^[^ ]*swarm[^ ]* {file}' || echo none
"""
HOG = "python3 -c 'x = bytearray(900 << 20); import time; time.sleep(60)'"
BOTH_SHIMS = pytest.mark.both_shims
GROUPS = pytest.mark.parametrize("groups", ["with control groups", "without"])
ENDINGS = pytest.mark.parametrize("ending", ["cancel", "time-out", "memory", "own end"])


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here, and the swarm is written in C: install gcc")
    built = tmp_path_factory.mktemp("swarm") / "swarm"
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", built, SOURCE], check=True)
    return built


class Swarm:
    """A swarm in a job, and the job that looks after it."""

    def __init__(self, box: Box, program: Path, kind: str, total: int, alive: int) -> None:
        self.box = box
        self.file = box.work / "swarm"
        self.file.write_bytes(bytes(16))
        self.line = f"{program} {self.file} {kind} {total} {alive}"

    def counters(self) -> tuple[int, int, int, int]:
        """Made so far, told to go, alive, waiting."""
        made, go, alive, waiting = struct.unpack("4i", self.file.read_bytes())
        return made, go, alive, waiting

    def go(self) -> None:
        with self.file.open("r+b") as file:
            file.seek(4)
            file.write(struct.pack("i", 1))

    def end(self, ending: str, ready: int) -> None:
        """Start it, wait until `ready` members stand still, end it in this way, and see that it did."""
        words = {
            "cancel": ["--grace", "1", self.line],
            "time-out": ["--grace", "1", "--time", "0:04", self.line],
            "memory": [
                "--memory",
                "500M",
                f"{self.line} & until [ -e {self.file}.eat ]; do sleep 0.05; done; {HOG} & sleep 60",
            ],
            "own end": [f"{self.line} & until [ -e {self.file}.eat ]; do sleep 0.05; done; exit 3"],
        }[ending]
        job = self.box.submit("--gpus", "1", *words)
        after = self.box.submit("--gpus", "1", LOOK.format(file=self.file))
        wait_until(lambda: self.counters()[3] >= ready, 30, "the swarm")
        if ending == "time-out":  # the last second before it is killed
            wait_until(lambda: self.box.job(job)["stopping"], what="the time limit")
        self.go()
        if ending == "cancel":
            self.box.ok("gcancel", "--now", str(job))
        Path(f"{self.file}.eat").touch()
        final = self.box.finished(job, 30)
        state, reason = {
            "cancel": ("Cancelled", "CancelledByUser"),
            "time-out": ("Timeout", "TimeLimit"),
            "memory": ("Failed", "OutOfMemory"),
            "own end": ("Failed", "ExitCode:3"),
        }[ending]
        assert (final["state"], final["reason"].partition(": ")[0]) == (state, reason)
        assert self.box.finished(after, 60)["state"] == "Finished"
        assert self.box.text_of(after).split() == ["unlocked", "none"]


@pytest.fixture
def started(box: Box, groups: str) -> Box:
    environment = {"GFLOW_NO_CGROUPS": "1"} if groups == "without" else {}
    return box.up("--simulate-gpus", "1x80G", "--cpus", "4", env=environment)


@BOTH_SHIMS
@GROUPS
@ENDINGS
def test_daemonised_processes_without_tags_are_ended(started: Box, program: Path, ending: str) -> None:
    Swarm(started, program, "daemon", 100, 20).end(ending, ready=20)


@BOTH_SHIMS
@GROUPS
@ENDINGS
def test_process_that_forks_while_killed_is_ended(started: Box, program: Path, ending: str) -> None:
    swarm = Swarm(started, program, "chain", 10_000, 2)
    swarm.end(ending, ready=2)
    assert swarm.counters()[0] < 10_000, "it was not ended, it stopped by itself"


@BOTH_SHIMS
@pytest.mark.skipif(os.getuid() != 0, reason="only root's shims may run before a job does")
def test_forty_forking_chains_are_ended(box: Box, program: Path) -> None:
    """They leave so many zombies that the shim needs the CPU before they do."""
    box.up("--simulate-gpus", "1x80G", "--cpus", "4", env={"GFLOW_NO_CGROUPS": "1"})
    swarm = Swarm(box, program, "rush", 400_000, 40)
    job = box.submit("--gpus", "1", "--grace", "0", swarm.line)
    wait_until(lambda: swarm.counters()[3] >= 40, 30, "the swarm")
    swarm.go()
    wait_until(lambda: swarm.counters()[0] > 3000, 30, "the rush")
    box.ok("gcancel", "--now", str(job))
    box.finished(job, 30)
    assert swarm.counters()[0] < 400_000, "it was not ended, it stopped by itself"


@pytest.mark.slow
@GROUPS
@pytest.mark.parametrize("ending", ["cancel", "memory"])
def test_ten_thousand_processes_are_ended(started: Box, program: Path, ending: str) -> None:
    """Ten thousand in all, two hundred at a time: more would hold up the machine, not us."""
    swarm = Swarm(started, program, "wide", 10_000, 200)
    swarm.end(ending, ready=100)
    assert swarm.counters()[0] == 10_000


@BOTH_SHIMS
@GROUPS
def test_daemonised_processes_end_after_shim_kill(started: Box, program: Path) -> None:
    """The shim was their parent. They have nothing left that tells whose they are."""
    swarm = Swarm(started, program, "daemon", 100, 20)
    job = started.submit("--gpus", "1", swarm.line)
    after = started.submit("--gpus", "1", LOOK.format(file=swarm.file))
    wait_until(lambda: swarm.counters()[3] >= 20, 30, "the swarm")
    os.kill(int((started.data / f"run/{job}.1").read_text().split()[3]), 9)
    assert started.finished(job)["reason"] == "Lost"
    started.finished(after)
    assert started.text_of(after).split() == ["unlocked", "none"]


ORPHANS = """
import os, time
open("first", "w").write(str(os.getpid()))
while not os.path.exists("go"): time.sleep(0.02)
for _ in range(700):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
open("made", "w").close()
time.sleep(600)
"""


@BOTH_SHIMS
@pytest.mark.skipif(os.getuid() != 0, reason="only root's shims may run before a job does")
def test_shim_returns_realtime_priority_after_reaping(box: Box) -> None:
    box.up("--cpus", "4", env={"GFLOW_NO_CGROUPS": "1"})
    job = box.submit("python3", "-c", ORPHANS)
    wait_until(lambda: (box.work / "first").exists(), what="the job")
    shim = int((box.data / f"run/{job}.1").read_text().split()[3])
    os.kill(shim, signal.SIGSTOP)
    try:
        (box.work / "go").touch()
        wait_until(lambda: (box.work / "made").exists(), what="the orphans")
    finally:
        os.kill(shim, signal.SIGCONT)
    wait_until(lambda: len(children(shim)) == 1, what="their end")
    wait_until(lambda: os.sched_getscheduler(shim) == os.SCHED_OTHER, what="the usual scheduling policy")
    assert box.job(job)["state"] == "Running"
    box.ok("gcancel", "--now", str(job))
    box.finished(job)
