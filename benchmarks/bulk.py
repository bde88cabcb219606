"""Measure the latency of other clients while one client submits, changes or lists 100,000 jobs.

    benchmarks/run bulk                             # this repository's daemon
    benchmarks/run bulk --jobs 1000000 -t submit,queue-all,cancel
    python3 -m benchmarks.bulk --python OTHER/bin/python --jobs 10000 -t submit,cancel

More than 100,000 jobs are submitted and changed in several requests, because one request takes no more. During each request a second client gets /info every 5 ms. Figures: duration of the request; maximum and
99th percentile of the second client's latency; longest uninterrupted work of the daemon's loop, in CPU time
(independent of other load on the machine); the daemon's CPU time and peak memory. See README.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.measure import cpu_seconds, describe_machine  # noqa: E402

EVERY_S = 0.005
# Uninterrupted work of the loop is recorded from this much CPU time on.
NOTED_S = 0.005
TURNS = "BULK_TURNS"
# The most jobs of one request.
BATCH = 100_000
# The most jobs of one listing.
LISTED = 200_000
TRIALS = ("submit", "sweep", "array", "list", "queue-all", "queue-20", "hold", "release", "update", "cancel")


class Figures(NamedTuple):
    """Results of one trial. Times in ms, memory in MiB."""

    took: float
    longest: float
    p99: float
    turn: float
    cpu: float
    peak: float
    asked: int


class Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("gflow", timeout=600)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(600)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, what: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = Unix(path)
    connection.request(method, what, body or None, {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


# ---------------------------------------------------------------- the daemon


def be_daemon(arguments: list[str]) -> None:
    """Run the daemon and record long uninterrupted work of its loop."""
    from asyncio import events

    run, path = events.Handle._run, os.environ[TURNS]

    def measured(handle: Any) -> None:
        before = time.thread_time()
        run(handle)
        took = time.thread_time() - before
        if took > NOTED_S:
            with open(path, "a") as file:
                file.write(json.dumps([time.monotonic(), took, repr(handle)[:300]]) + "\n")

    events.Handle._run = measured
    sys.argv = ["gflow", "gflowd", "run", *arguments]
    runpy.run_module("gflow", run_name="__main__", alter_sys=False)


class Daemon:
    """A separate daemon in a separate folder."""

    def __init__(self, python: str, folder: Path) -> None:
        self.turns = folder / "turns"
        self.turns.touch()
        home = folder / "home"
        home.mkdir()
        self.socket = home / "run" / "gflow.sock"
        self.socket.parent.mkdir()
        env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", TURNS: str(self.turns)}
        self.env = {name: text for name, text in env.items() if name != TURNS}
        self.bin = Path(python).parent
        command = [python, str(Path(__file__).resolve()), "daemon", "--cpus", "1"]
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(command, env=env, cwd=folder, stdout=self.log, stderr=self.log)
        address = home / ".local/share/gflow/address"
        while not address.exists():
            if self.process.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.05)
        self.socket = Path(address.read_text())

    def cpu_s(self) -> float:
        return cpu_seconds([self.process.pid])

    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def turns_since(self, began: float) -> list[tuple[float, str]]:
        rows = [json.loads(line) for line in self.turns.read_text().splitlines()]
        return [(took, what) for at, took, what in rows if at >= began]

    def end(self) -> None:
        """Kill all jobs, because they outlive their daemon."""
        ask(self.socket, "POST", "/drain", b'{"on": true}')
        ask(self.socket, "POST", "/jobs/cancel", b'{"states": ["Running"], "now": true}')
        while json.loads(ask(self.socket, "GET", "/jobs?states=Running")[1])["total"]:
            time.sleep(0.05)
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def daemon(python: str) -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="bulk-"))
    one = Daemon(python, folder)
    try:
        yield one
    finally:
        one.end()
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- trials


def measured(one: Daemon, work: Callable[[], None], *, is_verbose: bool) -> Figures:
    """Do the work in a separate process and measure the second client meanwhile."""
    one.forget_peak()
    began, cpu = time.monotonic(), one.cpu_s()
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    waits = []
    while child.is_alive():
        asked = time.monotonic()
        ask(one.socket, "GET", "/info")
        waits.append(time.monotonic() - asked)
        time.sleep(EVERY_S)
    took = time.monotonic() - began
    child.join()
    if child.exitcode:
        raise SystemExit("the request failed")
    turns = one.turns_since(began)
    if is_verbose:
        for longest, what in sorted(turns, reverse=True)[:5]:
            print(f"    {longest * 1000:.0f} ms {what}", file=sys.stderr)
    return Figures(
        took * 1000,
        max(waits) * 1000,
        sorted(waits)[int(len(waits) * 0.99)] * 1000,
        max((turn for turn, _ in turns), default=0.0) * 1000,
        (one.cpu_s() - cpu) * 1000,
        one.peak_mib(),
        len(waits),
    )


def submission(jobs: list[dict[str, Any]]) -> bytes:
    return json.dumps({"token": uuid.uuid4().hex, "environ": "QT0x", "jobs": jobs}).encode()


def job(number: int, **options: Any) -> dict[str, Any]:
    command = ["sh", "-c", "exec sleep 1000", str(number)]
    return {"command": command, "cwd": "/tmp", "options": {"cpus": 1, "time": "2:00:00", **options}}


def must(one: Daemon, what: str, *bodies: bytes) -> None:
    """Post these bodies one after the other."""
    for body in bodies:
        status, content = ask(one.socket, "POST", what, body)
        if status not in (200, 201):
            raise SystemExit(f"{what}: {status} {content[:300]!r}")


def works(one: Daemon, count: int) -> dict[str, Callable[[], None]]:
    """Each trial by name; they build on each other in this order. The first job runs, the others wait."""
    ranges = [f"{first}-{min(first + BATCH - 1, count)}" for first in range(2, count + 1, BATCH)]
    named = [json.dumps({"jobs": [each]}).encode() for each in ranges]
    update = [json.dumps({"jobs": [each], "options": {"priority": 20}}).encode() for each in ranges]
    parts = [range(first, min(first + BATCH, count)) for first in range(0, count, BATCH)]
    bodies = [submission([job(number) for number in part]) for part in parts]
    sweep = [submission([job(0) | {"options": {"param": f"s=1:{min(count, 10_000)}", "hold": True}}])]
    array = [submission([job(0, array=f"1-{min(count, BATCH)}", hold=True)])]
    return {
        "submit": lambda: must(one, "/jobs", *bodies),
        "sweep": lambda: must(one, "/jobs", *sweep),
        "array": lambda: must(one, "/jobs", *array),
        "list": lambda: none(ask(one.socket, "GET", "/jobs")),
        "queue-all": lambda: command(one, "gqueue", "-a", "-n", str(min(count, LISTED))),
        "queue-20": lambda: command(one, "gqueue", "-n", "20", times=20),
        "hold": lambda: must(one, "/jobs/hold", *named),
        "release": lambda: must(one, "/jobs/release", *named),
        "update": lambda: must(one, "/jobs/update", *update),
        "cancel": lambda: must(one, "/jobs/cancel", b'{"all": true}'),
    }


def command(one: Daemon, name: str, *words: str, times: int = 1) -> None:
    """Run a command of the installation, without its output."""
    for _ in range(times):
        subprocess.run([one.bin / name, *words], env=one.env, check=True, stdout=subprocess.DEVNULL)


def none(_: object) -> None:
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="of an installation of gflow")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("-t", "--trials", default=",".join(TRIALS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures into this file")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what took the loop longest")
    options = parser.parse_args()
    print(f"{options.jobs:,} jobs         took s   longest   p99  one go CPU ms   CPU s   peak MiB   asked")
    load, rows = [os.getloadavg()[0]], {}
    with daemon(os.path.abspath(options.python)) as one:
        todo = works(one, options.jobs)
        if unknown := [name for name in options.trials.split(",") if name not in todo]:
            parser.error(f"no trial {unknown[0]!r}; there are {', '.join(todo)}")
        for name in options.trials.split(","):
            row = rows[name] = measured(one, todo[name], is_verbose=options.verbose)
            print(
                f"{name:<12} {row.took / 1000:>12.1f} {row.longest:>9.0f} {row.p99:>5.0f} "
                f"{row.turn:>14.0f} {row.cpu / 1000:>7.1f} {row.peak:>10.0f} {row.asked:>7}",
                flush=True,
            )
            load.append(os.getloadavg()[0])
            if options.json:
                write_json(options.json, options.jobs, rows, load)


def write_json(path: Path, jobs: int, rows: dict[str, Figures], load: list[float]) -> None:
    """Write the figures as `benchmarks.page` reads them."""
    data = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(load),
        "jobs": jobs,
        "rows": {name: row._asdict() for name, row in rows.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["daemon"]:
        be_daemon(sys.argv[2:])
    else:
        main()
