"""The adapter of task-spooler, from the distribution (command `tsp`)."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmarks.measure import NotOffered, marked, timed
from benchmarks.systems import FOREVER, System, argv, first_line_of, register


@register
class Tsp(System):
    """task-spooler: one waiting process per job, nothing on disk, no bulk submission."""

    name = "tsp"
    many = 1000
    waiting_most = 900  # its server accepts about 1000 connections, and each waiting job is one
    label = "bench-hold"

    def __init__(self) -> None:
        super().__init__()
        self.pid = 0

    def version(self) -> str:
        return first_line_of(["tsp", "-V"])

    def start(self, slots: int | None = None, hold: bool = False) -> None:
        self.stop()
        self.fresh(TS_SOCKET=str(self.dir / "socket"), TS_MAXFINISHED="200000", TS_MAXCONN="15000")
        self.env |= self.folders(TMPDIR="tmp")
        self.spawn(slots)
        if hold:
            self.silent(["tsp", "-n", "-L", self.label, *FOREVER])

    def spawn(self, slots: int | None) -> None:
        self.silent(["tsp", "-S", str(slots or self.many)])
        self.pid = next(pid for pid in marked(self.mark) if _words(pid)[:2] == ["tsp", "-S"])

    def silent(self, command: list[str]) -> None:
        timed(command, self.env, self.work)

    def restart(self) -> None:
        self.spawn(None)

    def stop(self) -> None:
        if self.env:
            subprocess.run(["tsp", "-K"], env=self.env, stderr=subprocess.DEVNULL, timeout=20)
            self.sweep()  # clients of a killed server wait on
        self.env = {}

    def pids(self) -> list[int]:
        return [self.pid]

    def cmd_submit(self, script: str) -> list[str]:
        return ["tsp", "-n", *argv(script)]

    def cmd_submit_blocked(self) -> list[str]:
        return ["tsp", "-n", "true"]

    def cmd_queue(self) -> list[str]:
        return ["tsp", "-l"]

    def cmd_show(self) -> list[str]:
        return ["tsp", "-i", "0"]

    def cmd_help(self) -> list[str]:
        return ["tsp", "-h"]

    def bulk(self, count: int, script: str, kind: str = "run") -> float:
        if count > self.waiting_most:
            raise NotOffered(f"takes about {self.many} waiting jobs, then blocks")
        command = self.cmd_submit(script)
        begin = time.perf_counter()
        for _ in range(count):
            self.silent(command)
        return time.perf_counter() - begin

    def rows(self) -> list[str]:
        return [row for row in self.call(["tsp", "-l"]).splitlines()[1:] if f"[{self.label}]" not in row]

    def done(self) -> int:
        return sum(" finished " in row for row in self.rows())

    def known(self) -> int:
        return len(self.rows())


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
