"""Three people work, and everything is killed again and again: every job is as it must be."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.test_restarts import left_groups, zombies
from tests.harness import Box, wait_until
from tests.soak.worker import VICTIM_S
from tests.system import System, SystemBox, system
from tests.user_accounts import become

ROOT = Path(__file__).parents[2]
# `make soak` asks for ten thousand.
JOBS = int(os.environ.get("GFLOW_SOAK_JOBS", "240"))
# One kill of a daemon for so many jobs. The last fifth has none: then memory is watched.
JOBS_PER_RESTART = 60
CALM = 0.2
# What the daemon may grow by in that time: it must not depend on how many jobs there were.
GROWTH_KIB = 24 << 10
PATIENCE_S = 60 + JOBS


class Killer:
    """Kills jobs, shims, the zygote and the daemon, and remembers whom."""

    def __init__(self, machine: System, seed: int) -> None:
        self._machine, self._dice = machine, random.Random(seed)
        self.kills: Counter[str] = Counter()
        # Jobs whose shim was killed: they may be lost.
        self.shims_of: set[str] = set()

    def kill(self, what: str, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills[what] += 1

    def strike(self, *, zygote: bool) -> None:
        """All victims that run now, sometimes a shim, seldom the zygote."""
        for record in sorted((self._machine.box.data / "run").glob("*.*")):
            words = _words(record)
            if len(words) < 10 or words[5] != "job":
                continue
            if _command(int(words[8])) == ["sleep", VICTIM_S]:
                self.kill("job", int(words[8]))
            elif self._dice.random() < 0.01:
                self._kill_shim(words[3])
        if zygote and self._dice.random() < 0.05:
            self._strike_zygote()

    def _kill_shim(self, pid: str) -> None:
        """Stopped first: a shim may have gone on to another job since its record was read."""
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGSTOP)
            wait_until(lambda: _state(int(pid)) in "TZ", what="the shim to stop")
            for record in (self._machine.box.data / "run").glob("*.*"):
                if _words(record)[3:4] == [pid]:
                    self.shims_of.add(record.name.split(".")[0])
            self.kill("shim", int(pid))

    def _strike_zygote(self) -> None:
        daemon = self._machine.box.daemon
        assert daemon is not None
        text = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
        zygotes = [int(pid) for pid in text if "zygote.main()" in " ".join(_command(int(pid)))]
        if zygotes:
            self.kill("zygote", zygotes[0])

    def replace_daemon(self) -> None:
        """Kill the launcher or the scheduler; the other ends with it."""
        box = self._machine.box
        assert box.daemon is not None
        if self._dice.random() < 0.5:
            self.kill("launcher", box.daemon.pid)
            box.daemon.wait()
            self._machine.up()
            return
        scheduler = box.scheduler_pid()
        self.kill("scheduler", scheduler)
        wait_until(lambda: box.daemon is None or box.daemon.poll() is not None or _is_other(box, scheduler))
        if box.daemon.poll() is not None:
            self._machine.up()
        else:  # it was not young, and the launcher has started another one
            wait_until(box.serves, what="the next scheduler to serve")


def _is_other(box: SystemBox, scheduler: int) -> bool:
    with suppress(ValueError, OSError):  # between two of them
        return box.scheduler_pid() != scheduler
    return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def _words(record: Path) -> list[str]:
    try:
        return record.read_text().split()
    except OSError:
        return []


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


def resident_kib(box: SystemBox) -> int:
    """Memory of the launcher and the scheduler together."""
    assert box.daemon is not None
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in (box.daemon.pid, box.scheduler_pid())]
    return sum(int(text.partition("VmRSS:")[2].split()[0]) for text in texts)


def active(machine: System) -> int:
    return int(machine.ask(machine.box, "GET", "/jobs?limit=1")[1]["total"])


@pytest.mark.slow
def test_no_job_is_lost_when_every_process_is_killed() -> None:
    with system() as machine:
        machine.up()
        killer = Killer(machine, seed=JOBS)
        work(machine, killer, round(JOBS * (1 - CALM)), restarts=True)
        before = resident_kib(machine.box)
        work(machine, killer, round(JOBS * CALM), restarts=False)
        grown = resident_kib(machine.box) - before
        judge(machine, killer)
        print(f"{JOBS} jobs; kills: {dict(killer.kills)}; grown by {grown} KiB in the calm part")
        assert grown < GROWTH_KIB
        assert sum(killer.kills.values()) >= JOBS // 10


def work(machine: System, killer: Killer, jobs: int, *, restarts: bool) -> None:
    """Each user submits a share of the jobs, under kills; returns when no job is active."""
    workers = [
        start_worker(machine, box, jobs // 3, number + jobs) for number, box in enumerate(machine.persons)
    ]
    until = time.monotonic() + PATIENCE_S
    left = jobs // JOBS_PER_RESTART if restarts else 0
    next_at = time.monotonic() + 1
    while any(worker.poll() is None for worker in workers) or active(machine):
        # A zygote is buried when the next shim is needed; after the last job that would be never.
        killer.strike(zygote=restarts)
        if left and time.monotonic() > next_at:
            killer.replace_daemon()
            left, next_at = left - 1, time.monotonic() + 1
        assert time.monotonic() < until, f"still {active(machine)} jobs"
        time.sleep(0.02)
    while left > 0:
        killer.replace_daemon()
        left -= 1
    for worker in workers:
        assert worker.returncode == 0, worker.stderr.read().decode() if worker.stderr else ""


def start_worker(machine: System, box: Box, jobs: int, seed: int) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-m",
        "tests.soak.worker",
        machine.box.socket,
        str(box.work),
        str(jobs),
        str(seed),
    ]
    env = box.env | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([*become(box.person), *words], env=env, cwd=ROOT, stderr=subprocess.PIPE)


def judge(machine: System, killer: Killer) -> None:
    """Every job is what its owner wrote down, ran once and as them, and nothing of it is left."""
    jobs = machine.box.jobs()
    seen, wrong = 0, []
    for box in machine.persons:
        ran = Counter(tuple(line.split()) for line in (box.work / "ran").read_text().splitlines())
        assert {uid for _, uid in ran} == {str(box.person.pw_uid)}, "run as another user"
        assert set(ran.values()) == {1}, "run twice"
        for line in (box.work / "submissions").read_text().splitlines():
            number, kind, code = json.loads(line)
            seen += 1
            job = jobs[number]
            assert job["user"] == box.person.pw_name
            if not is_right(job, kind, code) and not is_lost(job, killer):
                wrong.append(
                    f"{kind} {code}: {shown(job)} {machine.box.api('GET', f'/jobs/{number}/history')}"
                )
            if kind == "exit" and not is_lost(job, killer):
                assert (str(number), str(box.person.pw_uid)) in ran, f"job {number} never ran"
    assert not wrong, "\n".join(wrong)
    assert seen == len(jobs)
    box = machine.box
    wait_until(lambda: not os.listdir(box.data / "run"), what="run records to be forgotten")
    wait_until(lambda: not os.listdir(machine.root / "run/gflow/jobs"), what="nothing to be left for jobs")
    wait_until(lambda: not processes_of(machine), what="all processes to end")
    wait_until(lambda: not zombies(box), what="zombies to be buried")
    wait_until(lambda: not left_groups(box), what="control groups to be dropped")


def shown(job: dict) -> dict:
    return {name: job[name] for name in ("id", "state", "reason", "exit_code", "signal", "attempt")}


def is_right(job: dict, kind: str, code: int) -> bool:
    if kind == "exit":
        return (job["state"], job["exit_code"]) == ("Failed" if code else "Finished", code)
    if kind == "victim":
        return (job["state"], job["signal"]) == ("Failed", 9)
    return bool(job["state"] == "Cancelled")


def is_lost(job: dict, killer: Killer) -> bool:
    return job["reason"] == "Lost" and str(job["id"]) in killer.shims_of


def processes_of(machine: System) -> list[str]:
    uids = {box.person.pw_uid for box in machine.persons}
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid in uids:
                found.append(entry)
    return found
