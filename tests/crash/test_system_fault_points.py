"""The daemon for all users: kill -9 of scheduler, launcher or both at each point of an attempt's life.

The process that passes the point stops there; then the victims are killed, and what was stopped goes on. Laws
1, 4 and 5: nothing acknowledged is lost, each job runs once, and running jobs survive.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gflow.fault_points import POINTS, SYSTEM_POINTS
from gflow.targets.local.run_record import start_time
from tests.harness import wait_until
from tests.process.test_system_mode import process_of
from tests.system import System, system

# Its launcher replaces a scheduler that was killed, however young that was.
PROGRAM = [sys.executable, str(Path(__file__).parents[1] / "process/unsteady_daemon.py")]
VICTIMS = ("scheduler", "launcher", "both")
TURN = (
    "turn.before-commit",
    "commit.inside",
    "turn.after-commit",
    "turn.before-effects",
    "turn.after-effects",
)
ORDER = ("launcher.order-received", "launcher.order-done")
END = ("launcher.end-received", "launcher.end-sent", "end.received")
CALL = ("launcher.call-received", "launcher.call-done", "launcher.call-answered")
# The points that each part of an attempt's life passes, with the number of the pass.
CASES = {
    "start": (*TURN, "start.before-order", "start.after-order", *ORDER, "launcher.start-checked"),
    "stop": (*TURN, *ORDER, *END),
    "end": (*END, *TURN, "forget.before", "forget.after"),
    "forget": ("forget.before-message", *ORDER),
    # The job has ended while there was no daemon.
    "adoption": (
        *("adopt.before", "adopt.before:2", *END, *TURN, *ORDER),
        *(f"{step}:{nth}" for step in CALL for nth in (1, 2, 3, 4)),
    ),
}
# The cases that are not slow.
FAST = {
    ("start", "launcher.order-received", "scheduler"),
    ("start", "start.after-order", "both"),
    ("end", "launcher.end-sent", "launcher"),
}


# Each point with one victim, in turns; all victims take three times as long (see `make soak`).
EACH = 1 if os.environ.get("GFLOW_ALL_POINTS") else len(VICTIMS)


def parameters() -> Iterator[Any]:
    points = [(part, point) for part, points in CASES.items() for point in points]
    for index, (part, point) in enumerate(points):
        for turn, victim in enumerate(VICTIMS):
            if (part, point, victim) in FAST:
                yield pytest.param(part, point, victim)
            elif (index + turn) % EACH == 0:
                yield pytest.param(part, point, victim, marks=pytest.mark.slow)


class Scene:
    """The machine, and the files of one case by which its jobs wait and note what they do."""

    def __init__(self, machine: System, name: str) -> None:
        self.machine, self.box = machine, machine.box
        self.folder = machine.ann.work / name
        self.folder.mkdir()
        assert machine.ann.person is not None
        os.chown(self.folder, machine.ann.person.pw_uid, -1)
        self.gate = machine.root / f"gate-{name}"

    def submit(self, mark: str, code: int, *options: str) -> int:
        """A job that notes its begin and its end, and waits for a file in between."""
        line = f"echo b >> {mark}; until [ -e go-{mark} ]; do sleep 0.02; done; echo e >> {mark}; exit {code}"
        return self.machine.ann.submit(*options, line, cwd=self.folder)

    def let_go(self, mark: str) -> None:
        (self.folder / f"go-{mark}").touch()

    def noted(self, mark: str) -> str:
        path = self.folder / mark
        return path.read_text() if path.exists() else ""

    def up(self, point: str = "", *, wait: bool = True) -> None:
        env = {"GFLOW_FAULT": point, "GFLOW_FAULT_GATE": str(self.gate)} if point else None
        self.machine.up(env=env, wait=wait)

    def kill_at_the_point(self, victim: str) -> None:
        """Wait until a process of the daemon has stopped, kill, and let what was stopped and lives go on."""
        daemon = self.box.daemon
        assert daemon is not None
        launcher, scheduler = wait_until(self._pids_if_stopped, 30, "the fault point to be passed")
        self.gate.unlink()
        for pid in {"scheduler": [scheduler], "launcher": [launcher], "both": [launcher, scheduler]}[victim]:
            with suppress(ProcessLookupError):  # it has ended with the other
                os.kill(pid, signal.SIGKILL)
        for pid in (launcher, scheduler):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: start_time(scheduler) is None, what="the end of the scheduler")
        if victim == "scheduler":
            wait_until(self.box.serves, what="the next scheduler")
        else:
            assert daemon.wait(20) == -signal.SIGKILL
            self.up()

    def _pids_if_stopped(self) -> tuple[int, int] | None:
        assert self.box.daemon is not None
        with suppress(ValueError, FileNotFoundError, ProcessLookupError):  # there is no scheduler yet
            pids = self.box.daemon.pid, self.box.scheduler_pid()
            if "T" in map(state_of, pids):
                return pids
        return None

    def kill_daemon(self) -> None:
        daemon = self.box.daemon
        if daemon is not None and daemon.poll() is None:
            scheduler = self.box.scheduler_pid()
            self.box.kill9()
            wait_until(lambda: start_time(scheduler) is None, what="the end of the scheduler")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture(scope="module")
def machine() -> Iterator[System]:
    with system() as made:
        made.box.program = PROGRAM
        yield made


@pytest.fixture
def scene(machine: System, request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(machine, re.sub(r"[^a-z0-9]+", "-", request.node.name))
    yield made
    machine.box.clean_up()
    shutil.rmtree(machine.box.data)


# ---------------------------------------------------------------- what passes the points


def stop(scene: Scene, subject: int, point: str) -> None:
    scene.gate.touch()
    scene.machine.ann.run("gcancel", str(subject))


def end(scene: Scene, subject: int, point: str) -> None:
    scene.gate.touch()
    scene.let_go("subject")


def forget(scene: Scene, subject: int, point: str) -> None:
    """After the order to start the job that waited."""
    scene.let_go("subject")
    wait_until(lambda: scene.noted("waiting"), what="the next job to begin")
    scene.gate.touch()


def come_back(scene: Scene, subject: int, point: str) -> None:
    shim = process_of(scene.machine, subject)[0]
    scene.kill_daemon()
    scene.let_go("subject")
    wait_until(lambda: start_time(shim) is None, what="the end of the job")
    scene.gate.touch()
    scene.up(point, wait=False)


ACTS: dict[str, Callable[[Scene, int, str], None]] = {
    "stop": stop,
    "end": end,
    "forget": forget,
    "adoption": come_back,
}


@pytest.mark.parametrize(("part", "point", "victim"), list(parameters()))
def test_kill_at_a_point(scene: Scene, part: str, point: str, victim: str) -> None:
    box = scene.box
    scene.up("" if part == "adoption" else point)
    running = scene.submit("running", 3)
    pid = process_of(scene.machine, running)[1]
    with ThreadPoolExecutor(1) as pool:
        acting: Future[Any]
        if part == "start":
            scene.gate.touch()
            acting = pool.submit(scene.submit, "subject", 5)  # gbatch asks again if the daemon ends
        else:
            subject = scene.submit("subject", 5)
            waiting = scene.submit("waiting", 0, "--dependency", f"afterany:{subject}")
            wait_until(lambda: scene.noted("subject") == "b\n", what="the job to begin")
            acting = pool.submit(ACTS[part], scene, subject, point)
            if part == "adoption":
                acting.result(60)
        scene.kill_at_the_point(victim)
        if part == "start":
            subject = acting.result(60)
            waiting = scene.submit("waiting", 0, "--dependency", f"afterany:{subject}")
        acting.result(60)
    assert start_time(pid) is not None, "the running job survives"
    ends = {"running": (running, 3), "subject": (subject, 5), "waiting": (waiting, 0)}
    if part == "stop":
        found = box.job(subject)
        if found["state"] == "Running" and not found["stopping"]:  # the request was not answered
            scene.machine.ann.ok("gcancel", str(subject))
        assert (box.finished(subject)["state"], scene.noted("subject")) == ("Cancelled", "b\n")
        del ends["subject"]
    for mark, (job, code) in ends.items():
        scene.let_go(mark)
        ended = box.finished(job)
        assert (ended["exit_code"], ended["attempt"], scene.noted(mark)) == (code, 1, "b\ne\n"), ended
    wait_until(lambda: not list((box.data / "run").iterdir()), what="run records to be forgotten")
    assert "Traceback" not in box.log()


def test_all_points_are_in_a_case() -> None:
    passed = {point.partition(":")[0] for points in CASES.values() for point in points}
    assert passed == {*POINTS, *SYSTEM_POINTS}
