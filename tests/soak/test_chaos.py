"""kill -9 while the daemon starts, reloads, backs up, migrates and works: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.load import Client, judge
from tests.harness import Box, wait_until
from tests.store.test_schemas import DUMPS, build

# By hand, `GFLOW_CHAOS_KILLS=300`.
KILLS = int(os.environ.get("GFLOW_CHAOS_KILLS", "40"))
FLAGS = ("--simulate-gpus", "4x80G", "--cpus", "6")
# How long a start, a reload or a backup takes on a loaded machine, about. Seconds.
STARTING_S = 1.5


class Chaos:
    """Kills the daemon of a box, its shims and its zygote, each at a moment of its own kind."""

    def __init__(self, box: Box, seed: int) -> None:
        self.box, self.dice = box, random.Random(seed)
        self.kills: Counter[str] = Counter()
        # Runs whose shim was killed: those jobs may be lost.
        self.shims_of: set[str] = set()
        self._ways: list[tuple[Callable[[], None], int]] = [
            (self.work, 3),
            (self.start_up, 4),
            (self.reload, 2),
            (self.backup, 2),
            (self.shim, 1),
            (self.zygote, 1),
        ]

    def strike(self) -> None:
        ways, weights = zip(*self._ways, strict=True)
        self.dice.choices(ways, weights)[0]()

    def work(self) -> None:
        self._after(0.3)
        self._kill("work")
        self.box.up()

    def start_up(self) -> None:
        """Killed while it starts, perhaps several times in a row."""
        self.box.kill9()
        for _ in range(self.dice.randrange(1, 4)):
            self.box.up(wait=False)
            self._after(STARTING_S)
            self._kill("start-up")
        self.box.up()

    def reload(self) -> None:
        assert self.box.daemon is not None
        os.kill(self.box.daemon.pid, signal.SIGUSR1)
        self._after(STARTING_S)
        self._kill("reload")
        self.box.up()

    def backup(self) -> None:
        def ask() -> None:
            with suppress(OSError):
                self.box.api("POST", "/backup", {})

        asking = threading.Thread(target=ask)
        asking.start()
        self._after(0.05)
        self._kill("backup")
        asking.join()
        self.box.up()

    def shim(self) -> None:
        """Stopped first: a shim may have gone on to another job since its record was read."""
        for record in sorted((self.box.data / "run").glob("*.*")):
            with suppress(OSError, IndexError):
                pid = record.read_text().split()[3]
                os.kill(int(pid), signal.SIGSTOP)
                self.shims_of |= {one.name for one in self._records_of(pid)}
                os.kill(int(pid), signal.SIGKILL)
                self.kills["shim"] += 1
                return

    def zygote(self) -> None:
        assert self.box.daemon is not None
        with suppress(OSError, IndexError):
            pid = self.box.daemon.pid
            child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            os.kill(int(child), signal.SIGKILL)
            self.kills["zygote"] += 1

    def _records_of(self, pid: str) -> list[Path]:
        found = []
        for record in (self.box.data / "run").glob("*.*"):
            with suppress(OSError):
                if record.read_text().split()[3:4] == [pid]:
                    found.append(record)
        return found

    def _after(self, at_most_s: float) -> None:
        time.sleep(self.dice.uniform(0, at_most_s))  # the moment itself is what is random

    def _kill(self, what: str) -> None:
        self.box.kill9()
        self.kills[what] += 1


@pytest.mark.slow
def test_kills_at_every_kind_of_moment_lose_nothing(box: Box) -> None:
    box.up(*FLAGS)
    chaos = Chaos(box, seed=KILLS)
    clients = [Client(box, number, seed=number) for number in range(4)]
    for client in clients:
        client.start()
    while sum(chaos.kills.values()) < KILLS:
        chaos.strike()
    for client in clients:
        client.stopped.set()
    for client in clients:
        client.join(60)
    verdict = judge(box, clients)
    jobs = box.jobs()
    lost = {job["id"] for job in jobs.values() if job["reason"] == "Lost"}
    allowed = {int(name.split(".")[0]) for name in chaos.shims_of}
    print(
        f"kills: {dict(chaos.kills)}; {verdict.acknowledged} acknowledged jobs, {len(lost)} lost with a shim"
    )
    assert not verdict.lost and not verdict.doubled, verdict
    assert lost <= allowed, f"lost without a killed shim: {lost - allowed}"
    assert set(verdict.wrong) <= lost, verdict
    for backup in (box.data / "backups").glob("*.db"):
        with sqlite3.connect(f"file:{backup}?mode=ro&immutable=1", uri=True) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",), backup
    wait_until(lambda: not list((box.data / "run").glob("*.*")), what="run records to be forgotten")


@pytest.mark.slow
@pytest.mark.parametrize("dump", DUMPS[:-1], ids=lambda path: path.stem)
def test_kills_during_a_migration_lose_nothing(box: Box, dump: Path) -> None:
    """The database of an older version, whose daemon is killed again and again while it migrates."""
    dice = random.Random(dump.stem)
    box.data.mkdir(parents=True, mode=0o700)
    build(dump, box.data / "gflow.db")
    with sqlite3.connect(box.data / "gflow.db") as db:
        before = {row[0] for row in db.execute("SELECT key >> 20 FROM jobs WHERE key & 0xfffff = 0")}
    for _ in range(max(2, KILLS // 10)):
        box.up(*FLAGS, wait=False)
        time.sleep(dice.uniform(0, STARTING_S))  # the moment itself is what is random
        box.kill9()
    box.up(*FLAGS)
    jobs = box.jobs()
    assert {job["array_id"] or number for number, job in jobs.items()} == before
    assert next(job for job in jobs.values() if job["name"] == "long")["reason"] == "Lost"
    with sqlite3.connect(f"file:{box.data}/gflow.db?mode=ro", uri=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
