"""The interface of a system under test.

Add a system: subclass `System`, fill in its hooks, decorate with `@register`, import the
module in `bench`. A hook that the system has nothing for raises `NotOffered("why")`, and the figure
becomes "n/a: why".
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import NotOffered, kill_marked, timed, wait_until

ROOT = Path(os.environ.get("BENCH_ROOT") or Path(tempfile.gettempdir()) / "gflow-bench").resolve()
SYSTEMS: dict[str, type[System]] = {}
# Variables of the caller that would change how a system or its jobs behave.
FOREIGN = ("PYTHON", "GFLOW_", "XDG_", "TS_", "TMUX", "VIRTUAL_ENV", "SLURM_")
FOREVER = ["sleep", "600"]


def register(cls: type[System]) -> type[System]:
    SYSTEMS[cls.name] = cls
    return cls


class System:
    """One scheduler: an isolated instance of it under `ROOT`, and how to speak to it."""

    name = ""
    # The most samples of a trial that this system can give in reasonable time.
    at_most: dict[str, int] = {}
    throughput_timeout_s = 240.0
    gap_timeout_s = 240.0

    def __init__(self) -> None:
        self.dir = ROOT / self.name
        self.work = self.dir / "work"
        self.mark = f"GFLOW_BENCH={self.dir}"
        self.env: dict[str, str] = {}

    # ------------------------------------------------------------ life

    def start(self, slots: int | None = None, hold: bool = False) -> None:
        """Hook: a fresh instance. `slots`: how many jobs may run at once (None: many).

        `hold`: occupy whatever `bulk(kind="blocked")` asks for, so that those jobs wait.
        """
        raise NotImplementedError

    def start_with_gpus(self, count: int) -> None:
        """Hook: a fresh instance with this many GPUs."""
        raise NotOffered("no simulated GPUs")

    def submit_on_gpu(self, script: str) -> None:
        """Hook: submit a job that needs one of them."""
        raise NotOffered("no simulated GPUs")

    def stop(self) -> None:
        """Hook: end it and everything it started."""
        raise NotImplementedError

    def kill9(self) -> None:
        """KILL the daemon alone."""
        os.kill(self.pids()[0], signal.SIGKILL)

    def restart(self) -> None:
        """Hook: bring it back on the state it left."""
        raise NotOffered("no restart")

    def pids(self) -> list[int]:
        """Hook: the processes that are the system, its daemon first."""
        raise NotImplementedError

    def daemon_pids(self) -> list[int]:
        """The processes of the daemon, without its helpers."""
        return self.pids()[:1]

    def version(self) -> str:
        """Hook: what exactly is measured. Raises `NotOffered` if it is not installed."""
        raise NotImplementedError

    def state_files(self) -> list[Path]:
        """Hook: the files that hold its durable state."""
        return []

    # ------------------------------------------------------------ command lines

    def cmd_submit(self, script: str) -> list[str]:
        raise NotOffered("no command for it")

    def cmd_submit_blocked(self) -> list[str]:
        """Hook: submit a job that has to wait (after `start(hold=True)`)."""
        raise NotOffered("no command for it")

    def cmd_submit_limited(self, script: str, limit_s: int) -> list[str]:
        raise NotOffered("no time limits")

    def cmd_queue(self) -> list[str]:
        raise NotOffered("no command for it")

    def cmd_queue_of(self, rows: int) -> list[str]:
        """Hook: list no more than this many jobs."""
        raise NotOffered("no command for it")

    def cmd_info(self) -> list[str]:
        raise NotOffered("no command for it")

    def cmd_show(self) -> list[str]:
        """Hook: show the first submitted job in detail."""
        raise NotOffered("no command for it")

    def cmd_help(self) -> list[str]:
        raise NotOffered("no command for it")

    # ------------------------------------------------------------ many jobs, and what became of them

    def bulk(self, count: int, script: str, kind: str = "run") -> float:
        """Hook: submit many jobs the fastest way there is; the seconds spent in requests.

        kind: "run" (free to run), "serial" (one at a time, after `start(slots=1)`) or
        "blocked" (cannot start, after `start(hold=True)`).
        """
        raise NotOffered("no bulk submission")

    def open_client(self) -> Callable[[str], None]:
        """Hook: a function that submits one script over a connection that stays open."""
        raise NotOffered("no open client")

    def done(self) -> int:
        """Hook: how many jobs have ended."""
        raise NotOffered("no query")

    def known(self) -> int:
        """Hook: how many jobs it knows of, apart from those of `hold`."""
        raise NotOffered("no query")

    def run_all(self, count: int, script: str) -> tuple[float, int]:
        """Run many jobs: the seconds until the last has ended, and how many have."""
        begin = time.perf_counter()
        self.bulk(count, script)
        wait_until(lambda: self.done() >= count, self.throughput_timeout_s, 0.05)
        seconds = time.perf_counter() - begin
        return seconds, self.done()

    # ------------------------------------------------------------ for the adapters

    def submit(self, script: str) -> float:
        return self.timed(self.cmd_submit(script))

    def timed(self, command: list[str]) -> float:
        """The seconds that a command of a user takes."""
        return timed(command, self.env, self.work)

    def fresh(self, **env: str) -> None:
        """Empty folders and a clean environment with our mark in it. Ends what an aborted run left."""
        self.sweep()
        shutil.rmtree(self.dir, ignore_errors=True)
        self.work.mkdir(parents=True)
        name, _, value = self.mark.partition("=")
        kept = {key: text for key, text in os.environ.items() if not key.startswith(FOREIGN)}
        self.env = kept | {name: value} | env

    def folders(self, **names: str) -> dict[str, str]:
        """Variables that point to new folders of this instance."""
        for folder in names.values():
            (self.dir / folder).mkdir(parents=True, exist_ok=True)
        return {variable: str(self.dir / folder) for variable, folder in names.items()}

    def call(self, command: list[str]) -> str:
        """Run a command of the system; its output."""
        done = subprocess.run(
            command,
            env=self.env,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def sweep(self) -> list[str]:
        """Kill what is left of this instance; the names of what was."""
        return kill_marked(self.mark)


def first_line_of(command: list[str | Path]) -> str:
    """The first line that a program prints, or `NotOffered` if it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError:
        raise NotOffered(f"{Path(command[0]).name} is not installed") from None
    return (done.stdout + done.stderr).partition("\n")[0]


def argv(script: str) -> list[str]:
    """A script as command words."""
    return ["true"] if script == "true" else ["sh", "-c", script]
